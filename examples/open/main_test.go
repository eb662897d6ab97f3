package main

import (
	"strings"
	"testing"
)

// The vector of cryptogram_test.go.
const (
	jwe = "eyJhbGciOiJBMjU2R0NNS1ciLCJlbmMiOiJBMjU2R0NNIiwiaXYiOiJSY0pDbnl2QjV2c3d1anZrIiwidGFnIjoiczY4Y18yQlJ1R2Nid3hmRHFTU21lZyJ9" +
		".VcLwb9ALnoaMhqFK6gYw7xlY6FqdiZhKFaqg5apt3uk.xLUV4q4CWqPGsi4l" +
		".VI5pIlCsfZ9WH73K_GGqVPHghmXZgNWovR6wCOgBJ5OL4HRGtgeBm91b-83e4RXmJf74G5rYRBO83jDl8YIISTcqsDFK8VGP7RxyUEAAFs6s6imJjk02gkV0EMmNk43HtYpWqpguSBsrCCvmaQhmLCWiuessGQ" +
		".SiDVGLeHQMXr8xusq_SV9A"
	opened = `{"network_token":{"token":"4895370000000000","expiry_year":2030,"expiry_month":12},"cryptogram":"AgAAAAAA","eci":null}` + "\n"
)

func TestOpen(t *testing.T) {
	for name, test := range map[string]struct{ secret, in, want, err string }{
		"JWE":            {"shared-secret", jwe + "\n", opened, ""},
		"answer":         {"shared-secret", `{"encrypted_authentication_data":"` + jwe + `"}`, opened, ""},
		"rotation":       {"another shared-secret", jwe, opened, ""},
		"no secret":      {"", jwe, "", "PAYMENT_SECRET is not set"},
		"another secret": {"another", jwe, "", "receive: payment data cannot be opened with these secrets"},
		"refused": {"shared-secret", `{"encrypted_authentication_data":null,"failure_details":[{"message":"The issuer declined."}]}`, "",
			"there is no cryptogram: The issuer declined."},
		"error":   {"shared-secret", `{"status":"404","message":"Not found."}`, "", "there is no payment data: Not found."},
		"over":    {"shared-secret", `{"encrypted_authentication_data":null}`, "", "there is no cryptogram: it may have expired"},
		"no JSON": {"shared-secret", `{"`, "", "standard input holds no payment data"},
		"nothing": {"shared-secret", "", "", "receive: payment data cannot be opened with these secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := run(test.secret, strings.NewReader(test.in), &out)
			if out.String() != test.want {
				t.Errorf("prints %q", out.String())
			}
			if (err != nil || test.err != "") && (err == nil || err.Error() != test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}
