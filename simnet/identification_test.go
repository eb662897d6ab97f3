package simnet_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

func identify(t testing.TB, n *simnet.Network, scheme card.Scheme, code int, key string) *idv.Result {
	t.Helper()
	r, err := n.IDV().Identify(t.Context(), &idv.Request{IdempotencyKey: key, Scheme: scheme, PAN: simnet.ScenarioPAN(scheme, code)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func lookUp(t testing.TB, n *simnet.Network, reference string) *idv.Result {
	t.Helper()
	r, err := n.IDV().LookupIdentification(t.Context(), &idv.LookupRequest{Reference: reference})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestIdentify(t *testing.T) {
	const challenge = "https://issuer.example/"
	for _, scheme := range all {
		n := newNetwork(t, memstore.New(), &simnet.Options{ChallengeURL: challenge})
		for _, code := range []int{0, 10, 71, 500} {
			if r := identify(t, n, scheme, code, "other"); r.State != idv.NotNeeded {
				t.Errorf("%v %03d: %+v", scheme, code, r)
			}
		}
		for key, passed := range map[string]bool{"passed": true, "failed": false} {
			r := identify(t, n, scheme, 70, key)
			if r.State != idv.Pending || r.ChallengeURL != challenge+r.Reference || r.Authentication != nil {
				t.Fatalf("%v: %+v", scheme, r)
			}
			n.Advance(time.Hour)
			if again := identify(t, n, scheme, 70, key); *again != *r || *lookUp(t, n, r.Reference) != *r {
				t.Errorf("%v, repeated: %+v, want %+v", scheme, again, r)
			}
			for _, answer := range []bool{passed, !passed} { // the first answer counts
				if err := n.Control().EndIdentification(t.Context(), r.Reference, answer); err != nil {
					t.Fatal(err)
				}
			}
			if waiting := lookUp(t, n, r.Reference); waiting.State != idv.Pending || waiting.ChallengeURL != "" {
				t.Errorf("%v, answered: %+v", scheme, waiting)
			}
			n.Advance(2 * time.Second)
			end := lookUp(t, n, r.Reference)
			if !passed {
				if end.State != idv.Failed || end.Authentication != nil {
					t.Errorf("%v, refused: %+v", scheme, end)
				}
				continue
			}
			eci := "05"
			if scheme == card.Mastercard {
				eci = "02"
			}
			if a := end.Authentication; end.State != idv.Passed || a.Method != "three_ds" || a.Status != "Y" || a.ECI != eci ||
				uuid.Validate(a.DSTransactionID) != nil || a.At.IsZero() {
				t.Errorf("%v, confirmed: %+v", scheme, a)
			}
			if again := lookUp(t, n, r.Reference); *again.Authentication != *end.Authentication {
				t.Errorf("%v, the proof changes", scheme)
			}
		}
	}
	n := newNetwork(t, memstore.New(), nil)
	r := identify(t, n, card.VISA, 70, "key")
	if r.State != idv.Pending || r.ChallengeURL != "" {
		t.Errorf("without a challenge: %+v", r)
	}
	n.Advance(2 * time.Second)
	if r := lookUp(t, n, r.Reference); r.State != idv.Passed {
		t.Errorf("without a challenge, later: %+v", r)
	}
	for _, reference := range []string{"", "x", uuid.NewString()} {
		if r := lookUp(t, n, reference); r.State != idv.Failed {
			t.Errorf("%q is known: %+v", reference, r)
		}
		_, err := n.Control().Identification(t.Context(), reference)
		if ended := n.Control().EndIdentification(t.Context(), reference, true); !errors.Is(err, simnet.ErrUnknownIdentification) || !errors.Is(ended, simnet.ErrUnknownIdentification) {
			t.Errorf("%q is known: %v, %v", reference, err, ended)
		}
	}
	if _, err := n.IDV().Identify(t.Context(), &idv.Request{Scheme: card.VISA, PAN: simnet.ScenarioPAN(card.VISA, 70)}); err == nil {
		t.Error("an empty idempotency key is accepted")
	}
}

// An identification survives the process.
func TestIdentifyRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "simulator")
	reference := ""
	for range 2 {
		n, err := simnet.Open(t.Context(), dir, &simnet.Options{ChallengeURL: "https://issuer.example/"})
		if err != nil {
			t.Fatal(err)
		}
		r := identify(t, n, card.VISA, 70, "key")
		if reference == "" {
			reference = r.Reference
			if err := n.Control().EndIdentification(t.Context(), reference, true); err != nil {
				t.Fatal(err)
			}
		}
		n.Advance(3 * time.Second)
		if got := lookUp(t, n, reference); r.Reference != reference || got.State != idv.Passed {
			t.Errorf("%+v", got)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
