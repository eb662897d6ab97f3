// Completes a session as a page would: WebCrypto and fetch alone, but for the first and
// the last line of code. The address of the session is the first argument, standard input
// what was entered, standard output the answer. With "bare" as the second argument the
// header is what public SDKs of the protocol send.
const [session, bare, entered] = [process.argv[2], process.argv[3] === 'bare', (await import('node:fs')).readFileSync(0)];

const utf8 = new TextEncoder();
const base64url = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes)))
  .replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');

const { data: { jwk }, next_action: action } = await (await fetch(session)).json();
const binding = { kid: jwk.kid, sid: session.split('/').pop() };
const header = { alg: jwk.alg, enc: 'A256GCM', ...(!bare && binding) };
const additionalData = utf8.encode(base64url(utf8.encode(JSON.stringify(header))));

const publicKey = await crypto.subtle.importKey('jwk', jwk, { name: 'RSA-OAEP', hash: 'SHA-256' }, false, ['encrypt']);
const key = crypto.getRandomValues(new Uint8Array(32));
const wrapped = await crypto.subtle.encrypt('RSA-OAEP', publicKey, key);
const iv = crypto.getRandomValues(new Uint8Array(12));
const gcm = await crypto.subtle.importKey('raw', key, 'AES-GCM', false, ['encrypt']);
const sealed = new Uint8Array(await crypto.subtle.encrypt({ name: 'AES-GCM', iv, additionalData }, gcm, entered));
const parts = [wrapped, iv, sealed.slice(0, -16), sealed.slice(-16)].map(base64url);

const answer = await fetch(`${session}/complete-action`, {
  method: 'POST',
  headers: { 'Content-Type': 'application/json' },
  body: JSON.stringify({ action, result: { enc_payload: [new TextDecoder().decode(additionalData), ...parts].join('.') } }),
});
if (answer.status !== 200) throw new Error(`status ${answer.status}`);
process.stdout.write(await answer.text());
