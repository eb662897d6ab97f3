// Pays with a stored card through Stripe's library and POST /forward. The library has
// placeholders in place of the card.
import Stripe from "stripe";
import { forwarding } from "./vault.js";

const [vault, key, token, provider] = process.argv.slice(2);
const { protocol, hostname, port } = new URL(provider);
const stripe = new Stripe("sk_test_1", {
  protocol: protocol.slice(0, -1), host: hostname, port, maxNetworkRetries: 0, telemetry: false,
  httpClient: Stripe.createFetchHttpClient(forwarding(vault, key, token)),
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
