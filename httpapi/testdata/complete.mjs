// Completes a session as a page would: WebCrypto and fetch alone. The address of the
// session is the argument, standard input what was entered, standard output the answer.
import { text } from 'node:stream/consumers';

const session = process.argv[2];
const utf8 = new TextEncoder();
const base64url = (bytes) => Buffer.from(bytes).toString('base64url');

const { data: { jwk }, next_action: action } = await (await fetch(session)).json();
const header = { alg: jwk.alg, enc: 'A256GCM', kid: jwk.kid, sid: session.split('/').pop() };
const additionalData = utf8.encode(base64url(JSON.stringify(header)));

const publicKey = await crypto.subtle.importKey('jwk', jwk, { name: 'RSA-OAEP', hash: 'SHA-256' }, false, ['encrypt']);
const key = crypto.getRandomValues(new Uint8Array(32));
const wrapped = await crypto.subtle.encrypt('RSA-OAEP', publicKey, key);
const iv = crypto.getRandomValues(new Uint8Array(12));
const gcm = await crypto.subtle.importKey('raw', key, 'AES-GCM', false, ['encrypt']);
const claims = utf8.encode(await text(process.stdin));
const sealed = new Uint8Array(await crypto.subtle.encrypt({ name: 'AES-GCM', iv, additionalData }, gcm, claims));
const parts = [wrapped, iv, sealed.slice(0, -16), sealed.slice(-16)].map(base64url);

const answer = await fetch(`${session}/complete-action`, {
  method: 'POST',
  headers: { 'Content-Type': 'application/json' },
  body: JSON.stringify({ action, result: { enc_payload: [new TextDecoder().decode(additionalData), ...parts].join('.') } }),
});
if (answer.status !== 200) throw new Error(`status ${answer.status}`);
process.stdout.write(await answer.text());
