package claims_test

import (
	"testing"

	"github.com/cardvault/cardvault/internal/claims"
)

func TestRead(t *testing.T) {
	const card = `"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030,"security_code":"737"`
	for _, test := range []struct {
		text string
		code bool // the security code alone
		ok   bool
	}{
		{`{` + card + `}`, false, true},
		{`{` + card + `,"cardholder_name":null,"other":[1]}`, false, true},
		{`{` + card + `,"cardholder_name":""}`, false, false},
		{`{` + card + `,"cardholder_name":1}`, false, false},
		{`{` + card + `,"email":"a@b.example","billing_address_city":" "}`, false, true},
		{`{` + card + `,"email":"4242 4242 4242 4242"}`, false, false},
		{`{` + card + `,"email":1}`, false, false},
		{`{"security_code":"737"}`, false, false},
		{`{"security_code":"737"}`, true, true},
		{`{"security_code":737}`, true, false},
		{`[]x`, true, false},
	} {
		if _, ok := claims.Read([]byte(test.text), test.code); ok != test.ok {
			t.Errorf("%s: %v", test.text, ok)
		}
	}

	c, _ := claims.Read([]byte(`{`+card+`,"cardholder_name":"Erika","email":"a&b@c.example"}`), false)
	if string(c.Number()) != "4242424242424242" || c.Month != 12 || c.Year != 2030 || string(c.SecurityCode()) != "737" || string(c.Name()) != "Erika" || string(c.Contact()) != `{"email":"a&b@c.example"}` {
		t.Error("other claims were read")
	}
}
