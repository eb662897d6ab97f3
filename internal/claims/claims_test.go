package claims_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/claims"
)

func TestRead(t *testing.T) {
	long := ""
	for i := range 40 {
		long += fmt.Sprintf(`,"billing_address_%d":%q`, i, strings.Repeat("x", 100))
	}
	const card = `"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030,"security_code":"737"`
	for _, test := range []struct {
		text  string
		code  bool // the security code alone
		wrong string
	}{
		{`{` + card + `}`, false, ""},
		{`{` + card + `,"cardholder_name":null,"other":[1]}`, false, ""},
		{`{` + card + `,"cardholder_name":""}`, false, "cardholder_name must not be empty"},
		{`{` + card + `,"cardholder_name":1}`, false, "cardholder_name must be a string"},
		{`{` + card + `,"cardholder_name":"4242424242424242"}`, false, "cardholder_name must not contain a card number"},
		{`{` + card + `,"email":"a@b.example","billing_address_city":" "}`, false, ""},
		{`{` + card + `,"email":"4242 4242 4242 4242"}`, false, "email must not contain a card number"},
		{`{` + card + `,"email":1}`, false, "email must be a string"},
		{`{` + card + `,"billing_address_4242424242424242":1}`, false, "billing_address_… must be a string"},
		{`{` + card + long + `}`, false, "email and billing_address_… must have at most 4096 bytes together"},
		{`{"security_code":"737"}`, false, "account_number is required"},
		{strings.Replace(`{`+card+`}`, `"4242424242424242"`, `4242424242424242`, 1), false, "account_number must be a string"},
		{strings.Replace(`{`+card+`}`, `12`, `"12"`, 1), false, "expiry_month must be an integer"},
		{strings.Replace(`{`+card+`}`, `2030`, `20.3`, 1), false, "expiry_year must be an integer"},
		{`{"security_code":"737"}`, true, ""},
		{`{"security_code":737}`, true, "security_code must be a string"},
		{`[]x`, true, "they must be a JSON object"},
	} {
		if _, wrong := claims.Read([]byte(test.text), test.code); wrong != test.wrong {
			t.Errorf("%s: %q, want %q", test.text, wrong, test.wrong)
		}
	}

	c, _ := claims.Read([]byte(`{`+card+`,"cardholder_name":"Erika","email":"a&b@c.example"}`), false)
	if string(c.Number()) != "4242424242424242" || c.Month != 12 || c.Year != 2030 || string(c.SecurityCode()) != "737" || string(c.Name()) != "Erika" || string(c.Contact()) != `{"email":"a&b@c.example"}` {
		t.Error("other claims were read")
	}
}
