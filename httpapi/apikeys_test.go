package httpapi_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/google/uuid"
)

// A stolen key can revoke itself and its descendants, and no key above or beside it. For
// such a key the answer is the same as for an unknown id.
func TestKeyRevokesOnlyBelow(t *testing.T) {
	r := newRig(t, nil, nil)
	root := r.newKeyBelow(t, r.vault, uuid.Nil, cardvault.AllScopes()...)
	beside := r.newKeyBelow(t, r.vault, root.ID, cardvault.AllScopes()...)
	child := r.newKeyBelow(t, r.vault, root.ID, cardvault.AllScopes()...)
	grandchild := r.newKeyBelow(t, r.vault, child.ID, cardvault.AllScopes()...)

	absent := send(t, r.handler, "DELETE", "/api-keys/"+uuid.NewString(), "", "X-Api-Key", child.text)
	absent.want(t, 404, "NOT_FOUND")
	for name, key := range map[string]madeKey{"above": root, "beside": beside, "a stranger": {r.principal, r.key}} {
		a := send(t, r.handler, "DELETE", "/api-keys/"+key.ID.String(), "", "X-Api-Key", child.text)
		a.want(t, 404, "NOT_FOUND")
		if a.body != absent.body {
			t.Errorf("%s: the answer differs from that for an unknown id: %s", name, a.body)
		}
		send(t, r.handler, "GET", "/tokens", "", "X-Api-Key", key.text).want(t, 200)
	}
	send(t, r.handler, "DELETE", "/api-keys/"+grandchild.ID.String(), "", "X-Api-Key", root.text).want(t, 204)
	send(t, r.handler, "GET", "/tokens", "", "X-Api-Key", grandchild.text).want(t, 401)
	send(t, r.handler, "DELETE", "/api-keys/"+child.ID.String(), "", "X-Api-Key", child.text).want(t, 204)
	send(t, r.handler, "GET", "/tokens", "", "X-Api-Key", child.text).want(t, 401)
}

// The depth of a chain of keys is limited.
func TestKeyDepth(t *testing.T) {
	r := newRig(t, nil, nil)
	text := r.key
	for depth := 2; depth <= cardvault.MaxAPIKeyDepth; depth++ {
		a := send(t, r.handler, "POST", "/api-keys", `{"label":"l","scopes":["api-keys:write"]}`, "X-Api-Key", text)
		a.want(t, 200)
		text = a.member(t, "key")
	}
	a := send(t, r.handler, "POST", "/api-keys", `{"label":"l","scopes":["api-keys:write"]}`, "X-Api-Key", text)
	a.want(t, 409, "QUOTA_EXCEEDED")
	// A missing scope is reported first.
	send(t, r.handler, "POST", "/api-keys", `{"label":"l","scopes":["tokens:read"]}`, "X-Api-Key", text).want(t, 403, "INSUFFICIENT_SCOPE")
}

// A principal without a key of the vault cannot make keys, because they would outlive the
// principal.
func TestKeysNeedAKey(t *testing.T) {
	r := newRig(t, nil, nil)
	account, err := r.vault.Account(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ends := time.Now().Add(time.Minute).UTC().Truncate(time.Second)
	key := (*cardvault.APIKey)(nil)
	h := newHandler(t, r.vault, &httpapi.Options{Authenticator: authenticator(func(context.Context, string) (*httpapi.Principal, error) {
		return &httpapi.Principal{Key: key, Scopes: cardvault.AllScopes(), Account: account}, nil
	})})
	const body = `{"label":"l","scopes":["tokens:read"]}`
	for _, e := range [][3]string{
		{"POST", "/api-keys", body},
		{"GET", "/api-keys", ""},
		{"DELETE", "/api-keys/" + r.principal.ID.String(), ""},
	} {
		send(t, h, e[0], e[1], e[2], "X-Api-Key", "x").want(t, 403, "INSUFFICIENT_SCOPE")
	}
	send(t, h, "GET", "/tokens", "", "X-Api-Key", "x").want(t, 200)

	// Keys made by an expiring principal expire with it.
	key = &cardvault.APIKey{ID: r.principal.ID, Account: account.ID, Scopes: cardvault.AllScopes(), ExpiresAt: ends}
	a := send(t, h, "POST", "/api-keys", body, "X-Api-Key", "x")
	a.want(t, 200)
	if got := a.member(t, "expires_at"); !strings.HasPrefix(got, ends.Format("2006-01-02T15:04:05")) {
		t.Errorf("the key ends at %s, its creator at %v", got, ends)
	}
}

// The log names the key that was used and the root of its chain.
func TestActorHasRoot(t *testing.T) {
	r := newRig(t, nil, nil)
	child := r.newKeyBelow(t, r.vault, r.principal.ID, cardvault.AllScopes()...)
	r.log.take()
	send(t, r.handler, "POST", "/cde-import", cardBody, "X-Api-Key", child.text).want(t, 200)
	if log := r.log.take(); !strings.Contains(log, "key_id="+child.ID.String()) || !strings.Contains(log, "root_key_id="+r.principal.ID.String()) {
		t.Errorf("the log lacks the key or its root %s", log)
	}
}
