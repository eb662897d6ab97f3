// Encrypts a card under the public key of its session, with WebCrypto alone.

const utf8 = new TextEncoder();

function base64url(bytes: ArrayBuffer | Uint8Array): string {
  return btoa(String.fromCharCode(...new Uint8Array(bytes)))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}

/** The public key of a session, as the vault sends it. */
export interface SessionKey {
  kty: string;
  n: string;
  e: string;
  kid: string;
}

/**
 * A compact JWE (RFC 7516) with RSA-OAEP-256 and A256GCM. It holds only for the session
 * that its header names.
 */
export async function encrypt(claims: object, jwk: SessionKey, session: string): Promise<string> {
  const { subtle } = crypto;
  const { kty, n, e, kid } = jwk;
  const algorithm = { name: "RSA-OAEP", hash: "SHA-256" };
  const publicKey = await subtle.importKey("jwk", { kty, n, e }, algorithm, false, ["wrapKey"]);
  const contentKey = await subtle.generateKey({ name: "AES-GCM", length: 256 }, true, ["encrypt"]);
  const wrapped = await subtle.wrapKey("raw", contentKey, publicKey, algorithm);
  const header = base64url(utf8.encode(JSON.stringify({ alg: "RSA-OAEP-256", enc: "A256GCM", kid, sid: session })));
  const iv = crypto.getRandomValues(new Uint8Array(12));
  const plain = utf8.encode(JSON.stringify(claims));
  const sealed = await subtle.encrypt({ name: "AES-GCM", iv, additionalData: utf8.encode(header) }, contentKey, plain);
  plain.fill(0);
  const tag = sealed.byteLength - 16;
  return [header, ...[wrapped, iv, sealed.slice(0, tag), sealed.slice(tag)].map(base64url)].join(".");
}
