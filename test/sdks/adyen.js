// Pays with a stored card through Adyen's library and POST /forward. The library takes a
// client of one's own.
import adyen from "@adyen/api-library";
import { forwarding } from "./vault.js";

const [vault, key, token, provider] = process.argv.slice(2);
const forward = forwarding(vault, key, token);
const client = new adyen.Client({ apiKey: "AQE_test_1", environment: "TEST" }, {
  async request(endpoint, json, config, _, { headers = {}, idempotencyKey } = {}) {
    const answer = await forward(provider + "/v1" + new URL(endpoint).pathname, {
      method: "POST",
      headers: { ...headers, "content-type": "application/json", "x-api-key": config.apiKey, "idempotency-key": idempotencyKey },
      body: json,
    });
    return answer.text();
  },
});

const paid = await new adyen.CheckoutAPI(client).PaymentsApi.payments({
  amount: { currency: "EUR", value: 1999 },
  merchantAccount: "Shop",
  reference: "order 1",
  returnUrl: "https://shop.example/",
  paymentMethod: {
    type: "scheme",
    number: "{{ account_number }}",
    expiryMonth: "{{ expiry_month }}",
    expiryYear: "{{ expiry_year }}",
    cvc: "{{ security_code }}",
    holderName: "{{ cardholder_name }}",
  },
}, { idempotencyKey: "order 1" });
console.log(paid.resultCode, paid.pspReference, paid.additionalData.echo);
