package main

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/examples/internal/sandboxtest"
	"github.com/cardvault/cardvault/simnet"
	"github.com/google/uuid"
)

// TestVectorInNode opens a JWE with a known content: the vector of cryptogram_test.go.
func TestVectorInNode(t *testing.T) {
	const jwe = "eyJhbGciOiJBMjU2R0NNS1ciLCJlbmMiOiJBMjU2R0NNIiwiaXYiOiJSY0pDbnl2QjV2c3d1anZrIiwidGFnIjoiczY4Y18yQlJ1R2Nid3hmRHFTU21lZyJ9" +
		".VcLwb9ALnoaMhqFK6gYw7xlY6FqdiZhKFaqg5apt3uk.xLUV4q4CWqPGsi4l" +
		".VI5pIlCsfZ9WH73K_GGqVPHghmXZgNWovR6wCOgBJ5OL4HRGtgeBm91b-83e4RXmJf74G5rYRBO83jDl8YIISTcqsDFK8VGP7RxyUEAAFs6s6imJjk02gkV0EMmNk43HtYpWqpguSBsrCCvmaQhmLCWiuessGQ" +
		".SiDVGLeHQMXr8xusq_SV9A"
	const want = `{"network_token":{"token":"4895370000000000","expiry_year":2030,"expiry_month":12},"cryptogram":"AgAAAAAA","eci":null}`
	if got := sandboxtest.OpenInNode(t, jwe, "shared-secret"); string(got) != want {
		t.Errorf("opens to %s", got)
	}
}

func TestScenarios(t *testing.T) {
	t.Parallel()
	sandboxtest.Scenarios(t, &start(t, t.TempDir()).Program)
}

// TestMidTimeline kills the server while network tokens are being provisioned. All of them
// reach their final state all the same, and there is one for each card.
func TestMidTimeline(t *testing.T) {
	// The final states by card number, with the last four digits then.
	courses := map[string]string{
		"4111110000000005": "active 0005",
		"4111110000000013": "active 0013",
		"4111110000000021": "active 0021",
		"4111110000000146": "active 0146",
		"4111110000000302": "inactive suspended_by_issuer 0302",
		"4111110000000310": "active 0310",
		"4111110000000328": "deleted 0328",
		"4111110000000336": "deleted account_closed invalid 0336",
		"4111110000000344": "active 4242",
		"4111110000000500": "active 0500",
		"4111110000000617": "active 0617",
	}
	arrived := func(k sandboxtest.Token) string {
		state := k.State() + " " + k["account_number_last_four"].(string)
		// A vault that missed the notice does not know the owner of the deletion.
		return strings.NewReplacer(" deleted_by_issuer", "", " deleted_by_scheme", "").Replace(state)
	}
	const each = 6
	dir := t.TempDir()
	want := map[string]string{} // by id
	list := func(p *process, query string) []any {
		return p.Want(t, 200, p.Accounts[0].APIKey, "GET", "/tokens?limit=500"+query, "")["data"].([]any)
	}
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	// Killed before the vault has any answer, and when it has a few.
	for _, answers := range []int{0, each} {
		p := start(t, dir)
		for range each {
			for pan, course := range courses {
				want[p.Import(t, pan).ID()] = course
			}
		}
		for end := time.Now().Add(sandboxtest.Patience); len(list(p, "&network_token_status=active")) < answers; <-look.C {
			if time.Now().After(end) {
				t.Fatal("nothing becomes active")
			}
		}
		p.kill(t)
	}
	p := start(t, dir)

	t.Parallel() // from here on it waits
	states := map[string]string{}
	look.Reset(200 * time.Millisecond)
	// Work that the killed server had claimed is free again after a while.
	for end := time.Now().Add(sandboxtest.Patience); !reflect.DeepEqual(states, want); <-look.C {
		clear(states)
		for _, k := range list(p, "") {
			states[sandboxtest.Token(k.(map[string]any)).ID()] = arrived(k.(map[string]any))
		}
		if time.Now().After(end) {
			for id, state := range want {
				if states[id] != state {
					t.Errorf("a token is %q, want %q", states[id], state)
				}
			}
			t.Fatalf("%d tokens, want %d", len(states), len(want))
		}
	}
	for id, state := range want {
		if strings.HasPrefix(state, "active") {
			p.WantCredential(t, id)
		}
	}
	p.stop(t)

	network, err := simnet.Open(t.Context(), filepath.Join(dir, "simulator"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	for id, state := range want {
		err := network.Control().Delete(t.Context(), uuid.MustParse(id))
		if had := !strings.HasPrefix(state, "deleted"); (err == nil) != had {
			t.Errorf("deleting a network token that is %q: %v", state, err)
		}
		if err := network.Control().Delete(t.Context(), uuid.MustParse(id)); !errors.Is(err, simnet.ErrUnknownToken) {
			t.Errorf("a token that was %q had more than one network token: %v", state, err)
		}
	}
}

// TestRestricted looks at a token of the account without activations.
func TestRestricted(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir)
	p.stop(t)
	id := importInto(t, dir, p.Accounts[1].AccountID)

	p = start(t, dir)
	key, path := p.Accounts[1].APIKey, "/tokens/"+id.String()
	const want = "not_available network_tokens_not_activated"
	if got := sandboxtest.Token(p.Want(t, 200, key, "GET", path, "")).State(); got != want {
		t.Errorf("the token is %q", got)
	}
	if got := sandboxtest.Token(p.Want(t, 200, key, "POST", path+"/provisions", "")).State(); got != want {
		t.Errorf("after provisions the token is %q", got)
	}
	for _, action := range []string{"suspend", "delete"} {
		p.Want(t, 409, key, "POST", "/simulator"+path+"/"+action, "")
	}
}

// importInto imports a card without the REST API, which refuses it.
func importInto(t *testing.T, dir string, account uuid.UUID) uuid.UUID {
	t.Helper()
	keys, err := cardvault.KeyFile(filepath.Join(dir, "keys", "vault.key"), nil)
	if err != nil {
		t.Fatal(err)
	}
	network, err := simnet.Open(t.Context(), filepath.Join(dir, "simulator"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	v, err := cardvault.Open(t.Context(), filepath.Join(dir, "vault"), keys, &cardvault.Options{Mode: cardvault.Sandbox, Network: network})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	k, err := v.In(account).Import(context.Background(), cardvault.Card{
		PAN:    simnet.ScenarioPAN(card.VISA, 0),
		Expiry: card.Expiry{Month: 12, Year: 2030},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return k.ID
}
