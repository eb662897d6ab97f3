// Opens payment data as a merchant who writes JavaScript would: WebCrypto alone.
// Standard input is {"secret": …, "jwe": …}, standard output what was encrypted.
import { webcrypto } from 'node:crypto';
import { text } from 'node:stream/consumers';

const { secret, jwe } = JSON.parse(await text(process.stdin));
const [header, wrapped, iv, ciphertext, tag] = jwe.split('.');
const bytes = (base64url) => Buffer.from(base64url, 'base64url');
const { alg, enc, iv: keyIV, tag: keyTag } = JSON.parse(bytes(header));
if (alg !== 'A256GCMKW' || enc !== 'A256GCM') throw new Error('other algorithms');

const open = async (key, iv, ciphertext, tag, additionalData) => {
  const k = await webcrypto.subtle.importKey('raw', key, 'AES-GCM', false, ['decrypt']);
  const algorithm = { name: 'AES-GCM', iv: bytes(iv), ...(additionalData && { additionalData }) };
  return webcrypto.subtle.decrypt(algorithm, k, Buffer.concat([bytes(ciphertext), bytes(tag)]));
};
const kek = await webcrypto.subtle.digest('SHA-256', new TextEncoder().encode(secret));
const key = await open(kek, keyIV, wrapped, keyTag);
process.stdout.write(Buffer.from(await open(key, iv, ciphertext, tag, new TextEncoder().encode(header))));
