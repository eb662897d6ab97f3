// Pays with a stored card through Stripe's library and POST /forward. The library has
// placeholders in place of the card.
import Stripe from "stripe";

const [vault, key, token, provider] = process.argv.slice(2);

// forward is a fetch whose requests are sent by the vault.
async function forward(url, init) {
  const answer = await fetch(vault + "/forward", {
    method: "POST",
    headers: { "x-api-key": key, "content-type": "application/json" },
    body: JSON.stringify({
      token_id: token,
      request: { method: init.method, url: String(url), headers: Object.fromEntries(new Headers(init.headers)), body: init.body },
    }),
  });
  const a = await answer.json();
  if (!answer.ok) {
    throw new Error(a.classifier + ": " + a.message);
  }
  const body = a.body_encoding === "base64" ? Buffer.from(a.body, "base64") : a.body;
  return new Response(body, { status: a.status_code, headers: a.headers });
}

const { protocol, hostname, port } = new URL(provider);
const stripe = new Stripe("sk_test_1", {
  protocol: protocol.slice(0, -1), host: hostname, port, maxNetworkRetries: 0, telemetry: false,
  httpClient: Stripe.createFetchHttpClient(forward),
});

const method = await stripe.paymentMethods.create({
  type: "card",
  card: { number: "{{ account_number }}", cvc: "{{ security_code }}", exp_month: 4, exp_year: 2088 },
  billing_details: { name: "{{ cardholder_name }}" },
});
console.log(method.id, method.metadata.echo);

try {
  await stripe.paymentIntents.create({ amount: 1999, currency: "eur", payment_method: method.id });
} catch (e) {
  console.log(e.code, e.message);
}
