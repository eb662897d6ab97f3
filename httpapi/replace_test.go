package httpapi_test

import (
	"context"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/network"
)

const amexBody = `{"account_number":"378282246310005","expiry_month":5,"expiry_year":2032}`

// TestReplaceConflict: of two replacements at a time one counts, by a caller or by a shopper.
// A shopper may try again.
func TestReplaceConflict(t *testing.T) {
	var meanwhile func()
	r := newRig(t, &cardvault.Options{BIN: binProvider(func(context.Context, *network.BINRequest) (*network.BIN, error) {
		if f := meanwhile; f != nil {
			meanwhile = nil
			f()
		}
		return nil, nil
	})}, nil)
	id := r.importCard(t)
	replace := func() { r.do(t, "POST", "/tokens/"+id+"/replace", amexBody).want(t, 200) }

	meanwhile = replace
	r.do(t, "POST", "/tokens/"+id+"/replace", cardBody).want(t, 409, "CARD_REPLACED")
	if a := r.do(t, "GET", "/tokens/"+id, ""); a.member(t, "account_number_last_four") != "0005" {
		t.Errorf("the token is %s", a.body)
	}

	session := "/sessions/" + r.do(t, "POST", "/tokens/"+id+"/replace-session", "").member(t, "session_id")
	complete := func() *answer {
		return r.do(t, "POST", session+"/complete-action", completion(t, r.do(t, "GET", session, ""), entered, ""))
	}
	meanwhile = replace
	complete().want(t, 409, "CARD_REPLACED")
	if a := complete(); a.status != 200 || !strings.Contains(a.body, id) {
		t.Errorf("the second try is answered with %d %s", a.status, a.body)
	}
	if n := r.total(t); n != 1 {
		t.Errorf("%d tokens", n)
	}
}

// TestReplaceOracle: numbers that replace others count together with imported ones, so that
// they cannot be guessed. An answer has no fingerprint without its scope.
func TestReplaceOracle(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newLiveRig(t, nil)
		id := r.importAs(t, r.key, "4111111238861234").member(t, "id")
		let := 0
		for _, number := range behind("411111", "1234", 16, 150) {
			a := send(t, r.handler, "POST", "/tokens/"+id+"/replace",
				`{"account_number":"`+number+`","expiry_month":4,"expiry_year":2031}`, "X-Api-Key", r.imports)
			if a.status == 200 {
				let++
				if a.object(t)["fingerprint"] != nil {
					t.Fatalf("a key without the scope sees %s", a.body)
				}
				continue
			}
			a.want(t, 429, "RATE_LIMITED")
		}
		if let != 99 { // including the first number
			t.Errorf("%d numbers were let through, want 99", let)
		}
		r.importAs(t, r.imports, behind("411111", "1234", 16, 1)[0]).want(t, 429, "RATE_LIMITED")
	})
}
