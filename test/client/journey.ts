// A shop in TypeScript: its types are generated from the contract, and its calls are made by
// openapi-fetch. It is given {base, key, secret} on standard input, and takes a card from a
// session to a decrypted cryptogram, as docs/journeys.md does.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { CompactEncrypt, compactDecrypt, importJWK } from "jose";
import createClient from "openapi-fetch";
import { Webhook } from "standardwebhooks";
import type { components, paths } from "./contract.js";

type Schemas = components["schemas"];
type Event = Schemas["TokenCreated"] | Schemas["TokenUpdated"] | Schemas["TokenDeleted"] | Schemas["TestEvent"];

const { base, key, secret } = JSON.parse(await text(process.stdin)) as Record<"base" | "key" | "secret", string>;
const shop = createClient<paths>({ baseUrl: base, headers: { "x-api-key": key } });
const browser = createClient<paths>({ baseUrl: base });

// must returns the body of an answer that is a success.
function must<T>({ data, error, response }: { data?: T; error?: Schemas["Error"]; response: Response }): NonNullable<T> {
  if (data === undefined || data === null) throw new Error(`${response.url} answers ${response.status}: ${error?.classifier}: ${error?.message}`);
  return data;
}

// A webhook of the shop, whose deliveries are verified by a library that is not the vault's.
const events: Event[] = [];
const deliveries: { headers: IncomingHttpHeaders; body: string }[] = [];
const receiver = createServer(async (request, response) => {
  deliveries.push({ headers: request.headers, body: await text(request) });
  response.writeHead(204).end();
});
await new Promise<void>((listening) => receiver.listen(0, "127.0.0.1", listening));
const address = receiver.address() as AddressInfo;
const hook = must(await shop.POST("/webhooks", { body: { url: `http://127.0.0.1:${address.port}/hook` } }));
assert.equal(hook.disabled_reason, null);
const verifier = new Webhook(hook.signing_secret);

// patience is how long pending work may take, in milliseconds, on a machine that does much else.
const patience = 5 * 60_000;

async function next(): Promise<Event> {
  for (const end = Date.now() + patience; deliveries.length === 0 && Date.now() < end; ) await sleep(50);
  const delivery = deliveries.shift();
  assert(delivery, "no delivery in 5 minutes");
  const event = verifier.verify(delivery.body, delivery.headers as Record<string, string>) as Event;
  assert.throws(() => verifier.verify(delivery.body + " ", delivery.headers as Record<string, string>));
  events.push(event);
  return event;
}

const test = must(await shop.POST("/webhooks/{id}/test", { params: { path: { id: hook.id } } }));
assert.equal(test.status_code, 204);
assert.equal((await next()).event_type, "webhook.test");

// The browser enters a card in a session.
const { session_id: session } = must(await shop.POST("/tokens/session", { body: { business_key: "order-7" } }));
const path = { id: session };
const open = must(await browser.GET("/sessions/{id}", { params: { path } }));
assert("next_action" in open && open.next_action === "tokenize_card" && "jwk" in open.data);
const card = { account_number: "4111110000000005", expiry_month: 12, expiry_year: 2030, security_code: "737" };
const { alg, kid } = open.data.jwk;
const payload = await new CompactEncrypt(new TextEncoder().encode(JSON.stringify(card)))
  .setProtectedHeader({ alg, enc: "A256GCM", kid, sid: session })
  .encrypt(await importJWK(open.data.jwk, alg));
const done = must(await browser.POST("/sessions/{id}/complete-action", {
  params: { path },
  body: { action: open.next_action, result: { enc_payload: payload } },
}));
assert("status" in done && done.status === "success");

// The shop believes the vault, not the browser.
const read = must(await shop.GET("/sessions/{id}", { params: { path } }));
assert("status" in read && read.status === "success");
const id = read.data.token_id;
const created = await next();
assert(created.event_type === "token.created" && created.reason === "tokenized" && created.token.id === id);
assert.equal(created.token.business_key, "order-7");

// A network token comes by itself.
async function active(): Promise<Schemas["Token"]> {
  for (const end = Date.now() + patience; Date.now() < end; ) {
    const token = must(await shop.GET("/tokens/{id}", { params: { path: { id } } }));
    if (token.network_token_status === "active") return token;
    await sleep(50);
  }
  throw new Error("no network token in 5 minutes");
}
const token = await active();
assert.equal(token.masked_account_number, "411111******0005");
assert.equal(token.network_token_status_reason, null);
const code = must(await shop.GET("/tokens/{id}/security-code", { params: { path: { id } } }));
assert(code.security_code_available && code.expires_at !== null);

// A cryptogram for one payment, asked for twice.
const payment = { amount: 1999, currency_code: "EUR", reference: "order 7" };
const ask = () => shop.POST("/tokens/{id}/payment-data", { params: { path: { id }, header: { "Idempotency-Key": "order-7" } }, body: payment });
const first = must(await ask());
assert(first.success && first.encrypted_authentication_data !== null, JSON.stringify(first.failure_details));
const again = await ask();
assert.deepEqual(must(again), first);
assert.equal(again.response.headers.get("Idempotency-Replayed"), "true");
async function decrypt(jwe: string | null) {
  assert(jwe !== null);
  const { plaintext } = await compactDecrypt(jwe, createHash("sha256").update(secret).digest());
  return JSON.parse(new TextDecoder().decode(plaintext)) as { network_token: { token: string }; cryptogram: string | null; eci: string | null };
}
const credential = await decrypt(first.encrypted_authentication_data);
assert.match(credential.network_token.token, /^[0-9]{12,19}$/);
assert(credential.cryptogram);

// Lists.
const page = must(await shop.GET("/tokens", { params: { query: { limit: 5, sort: "created_at asc", scheme: ["VISA"], network_token_status: ["active", "pending"], business_key: "order-7" } } }));
assert.deepEqual([page.data.map((t) => t.id), page.pagination.total_items], [[id], 1]);
const records = must(await shop.GET("/tokens/{id}/payment-data", { params: { path: { id } } }));
assert.deepEqual(records.data, [first]);

// The next month is paid without the shopper, and without a cryptogram.
const { data: month } = await shop.POST("/tokens/{id}/payment-data", {
  params: { path: { id } },
  body: { ...payment, reference: "order 7, second month", initiator: "merchant", network_transaction_id: "480012345678901" },
});
assert.deepEqual([month?.success, month?.initiator, month?.network_transaction_id], [true, "merchant", "480012345678901"]);
const alone = await decrypt(month!.encrypted_authentication_data);
assert.deepEqual([alone.network_token.token, alone.cryptogram], [credential.network_token.token, null]);

// What is refused has a type too.
const { error, response } = await shop.POST("/tokens/{id}/payment-data", { params: { path: { id } }, body: { ...payment, amount: -1 } });
assert.equal(response.status, 422);
assert.deepEqual(error?.validation_errors?.map((v) => [v.field, v.code]), [["amount", "out_of_range"]]);
const nobody = await shop.GET("/tokens/{id}", { params: { path: { id: session } } });
assert.deepEqual([nobody.response.status, nobody.error?.classifier], [404, "NOT_FOUND"]);
const keyless = await browser.GET("/tokens");
assert.deepEqual([keyless.response.status, keyless.error?.classifier], [401, "UNAUTHORIZED"]);

// The payment was authorized, and the order is done.
assert.equal((await shop.POST("/tokens/{id}/consume", { params: { path: { id } } })).response.status, 204);
const patched = must(await shop.PATCH("/tokens/{id}", { params: { path: { id } }, body: { cardholder_name: "Ada Lovelace", business_key: null } }));
assert.deepEqual([patched.cardholder_name, patched.business_key], ["Ada Lovelace", null]);

// The issuer has sent another card, and the token stays.
const other = { account_number: "5555550000000002", expiry_month: 12, expiry_year: 2034 };
const replaced = must(await shop.POST("/tokens/{id}/replace", { params: { path: { id } }, body: other }));
assert.deepEqual([replaced.id, replaced.scheme, replaced.account_number_stale], [id, "Mastercard", false]);
for (let last: Event | undefined; !last; ) {
  const event = await next();
  if (event.event_type !== "token.updated" || event.reason !== "card_replaced") continue;
  assert.equal(event.previous_account_number_last_four, "0005");
  last = event;
}
assert.deepEqual(must(await shop.GET("/tokens", { params: { query: { account_number_stale: true } } })).data, []);
assert.equal((await shop.DELETE("/tokens/{id}", { params: { path: { id } } })).response.status, 204);

for (let event = await next(); event.event_type !== "token.deleted"; event = await next()) {
  assert.equal(event.event_type, "token.updated");
}
assert.deepEqual(events.map((e) => e.token?.id ?? null), [null, ...events.slice(1).map(() => id)]);
assert(events.every((e, i) => i === 0 || e.sequence > events[i - 1]!.sequence));
assert.deepEqual(must(await shop.GET("/tokens")).data, []);
receiver.close();
console.log("done");

// What the contract does not allow does not compile.
export const mistakes = [
  // @ts-expect-error a token may have no name
  (t: Schemas["Token"]): string => t.cardholder_name,
  // @ts-expect-error an expiry has a year
  () => shop.POST("/cde-import", { body: { account_number: "4111110000000005", expiry_month: 12 } }),
  // @ts-expect-error a month is a number
  () => shop.PATCH("/tokens/{id}", { params: { path: { id } }, body: { expiry_month: "12", expiry_year: 2030 } }),
  // @ts-expect-error there is no such status
  () => shop.GET("/tokens", { params: { query: { network_token_status: ["gone"] } } }),
  // @ts-expect-error there is no such path
  () => shop.GET("/cards"),
];
