// Pays with a stored card through Braintree's library, whose answers are compressed XML. It
// has no client of one's own. So it is given the address of a relay, which sends its requests
// through a forwarder.
import braintree from "braintree";

const [host, port] = process.argv.slice(2);
const gateway = new braintree.BraintreeGateway({
  environment: new braintree.Environment(host, port, "", false, host, port),
  merchantId: "shop", publicKey: "public", privateKey: "private",
});

const result = await gateway.transaction.sale({
  amount: process.argv[4],
  creditCard: {
    number: "{{ account_number }}",
    expirationMonth: "{{ expiry_month }}",
    expirationYear: "{{ expiry_year }}",
    cvv: "{{ security_code }}",
    cardholderName: "{{ cardholder_name }}",
  },
});
console.log(result.success, result.transaction?.id, result.transaction?.creditCard.maskedNumber, result.message);
