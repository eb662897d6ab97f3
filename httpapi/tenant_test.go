package httpapi_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/google/uuid"
)

// Racing requests under one idempotency key make one token and have the same answer.
func TestIdempotencyRace(t *testing.T) {
	r := newRig(t, nil, nil)
	s := newServer(t, r.handler, false)
	const n = 50
	s.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = n
	ids, replayed := make([]string, n), make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/cde-import", strings.NewReader(cardBody))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("X-Api-Key", r.key)
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Idempotency-Key", "race")
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			var body strings.Builder
			if err := resp.Write(&body); err != nil {
				t.Error(err)
			}
			_, rest, _ := strings.Cut(body.String(), `{"id":"`)
			ids[i], replayed[i] = rest[:min(36, len(rest))], resp.Header.Get("Idempotency-Replayed")
			if resp.StatusCode != 200 {
				t.Errorf("status %d", resp.StatusCode)
			}
		})
	}
	wg.Wait()
	first := 0
	for i, id := range ids {
		if id != ids[0] {
			t.Errorf("ids %s and %s", id, ids[0])
		}
		if replayed[i] == "" {
			first++
		}
	}
	if total := r.total(t); total != 1 || first != 1 {
		t.Errorf("%d tokens, %d answers that are not replays", total, first)
	}
}

// The status for each combination of endpoint, key and id.
func TestTenants(t *testing.T) {
	inBubble(t, testTenants)
}

func testTenants(t *testing.T) {
	r := newRig(t, &cardvault.Options{Webhooks: &sender{}}, nil)
	other := r.newAccount(t, nil)
	all := cardvault.AllScopes()
	newKey := func(v *cardvault.Vault, ttl time.Duration, scopes ...cardvault.Scope) (string, string) {
		k, text := r.newKey(t, v, ttl, scopes...)
		return k.ID.String(), text
	}
	newMerchant := func(v *cardvault.Vault) string {
		m, err := v.CreateMerchant(t.Context(), "shop", nil)
		if err != nil {
			t.Fatal(err)
		}
		return m.ID.String()
	}
	newToken := func(v *cardvault.Vault) string {
		tok, err := v.Import(t.Context(), cardvault.Card{PAN: card.NewPAN([]byte(pan)), Expiry: card.Expiry{Month: 4, Year: 2031}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return tok.ID.String()
	}
	paid := newToken(r.vault)
	webhooks := map[*cardvault.Vault]string{} // the latest of each account
	newWebhook := func(v *cardvault.Vault) string {
		if id, ok := webhooks[v]; ok { // an account may have only a few
			if err := v.DeleteWebhook(t.Context(), parseUUID(t, id)); err != nil && !errors.Is(err, cardvault.ErrNotFound) {
				t.Fatal(err)
			}
		}
		webhooks[v] = r.newWebhook(t, v)
		return webhooks[v]
	}
	newEvent := func(v *cardvault.Vault) string {
		newWebhook(v)
		newToken(v)
		return r.lastEvent(t, v)
	}
	revokedID, revoked := newKey(r.vault, 0, all...)
	if err := r.vault.DeleteAPIKey(t.Context(), parseUUID(t, revokedID)); err != nil {
		t.Fatal(err)
	}
	_, expired := newKey(r.vault, time.Second, all...)
	otherID, otherKey := newKey(other, 0, all...)
	writer := r.newKeyBelow(t, r.vault, r.principal.ID, cardvault.ScopeAPIKeysWrite)
	time.Sleep(2 * time.Second)
	// A wrong checksum, and an unknown secret with a right checksum.
	malformed := r.key[:len(r.key)-1] + string('0'+(r.key[len(r.key)-1]-'0'+1)%10)
	unknown := newRig(t, nil, nil).key

	deletedToken := newToken(r.vault)
	if err := r.vault.Delete(t.Context(), parseUUID(t, deletedToken)); err != nil {
		t.Fatal(err)
	}
	for _, e := range []struct {
		name, method, path, body string
		scope                    cardvault.Scope
		object                   func(v *cardvault.Vault) string // makes the object of {id}
		status                   int
	}{
		{"session", "POST", "/tokens/session", "{}", cardvault.ScopeSessionsCreate, nil, 200},
		{"import", "POST", "/cde-import", cardBody, cardvault.ScopeTokensImport, nil, 200},
		{"list", "GET", "/tokens", "", cardvault.ScopeTokensRead, nil, 200},
		{"get", "GET", "/tokens/{id}", "", cardvault.ScopeTokensRead, newToken, 200},
		{"head", "HEAD", "/tokens/{id}", "", cardvault.ScopeTokensRead, newToken, 200},
		{"update", "PATCH", "/tokens/{id}", `{"cardholder_name":"A"}`, cardvault.ScopeTokensUpdate, newToken, 200},
		{"delete", "DELETE", "/tokens/{id}", "", cardvault.ScopeTokensDelete, newToken, 204},
		{"provision", "POST", "/tokens/{id}/provisions", "", cardvault.ScopeNetworkTokensProvision, newToken, 200},
		{"request payment data", "POST", "/tokens/{id}/payment-data", payment, cardvault.ScopePaymentDataCreate, newToken, 200},
		{"list payment data", "GET", "/tokens/{id}/payment-data", "", cardvault.ScopePaymentDataRead, newToken, 200},
		{"get payment data", "GET", "/tokens/" + paid + "/payment-data/{id}", "", cardvault.ScopePaymentDataRead, func(v *cardvault.Vault) string {
			token := paid
			if v == other {
				token = newToken(v)
			}
			p, err := v.RequestPaymentData(t.Context(), parseUUID(t, token), cardvault.PaymentRequest{Currency: "EUR", Reference: "r"})
			if err != nil {
				t.Fatal(err)
			}
			return p.ID.String()
		}, 200},
		{"security code", "GET", "/tokens/{id}/security-code", "", cardvault.ScopeSecurityCodeRead, newToken, 200},
		{"head of security code", "HEAD", "/tokens/{id}/security-code", "", cardvault.ScopeSecurityCodeRead, newToken, 200},
		{"refresh session", "POST", "/tokens/{id}/refresh-session", "", cardvault.ScopeSecurityCodeRefresh, newToken, 200},
		{"replace", "POST", "/tokens/{id}/replace", cardBody, cardvault.ScopeTokensImport, newToken, 200},
		{"replace session", "POST", "/tokens/{id}/replace-session", "", cardvault.ScopeSessionsCreate, newToken, 200},
		{"consume", "POST", "/tokens/{id}/consume", "", cardvault.ScopeSecurityCodeConsume, newToken, 204},
		{"create key", "POST", "/api-keys", `{"label":"l","scopes":["api-keys:write"]}`, cardvault.ScopeAPIKeysWrite, nil, 200},
		{"list keys", "GET", "/api-keys", "", cardvault.ScopeAPIKeysRead, nil, 200},
		{"get key", "GET", "/api-keys/{id}", "", cardvault.ScopeAPIKeysRead, func(v *cardvault.Vault) string {
			return r.newKeyBelow(t, v, uuid.Nil, cardvault.ScopeTokensRead).ID.String()
		}, 200},
		{"delete key", "DELETE", "/api-keys/{id}", "", cardvault.ScopeAPIKeysWrite, func(v *cardvault.Vault) string {
			by := writer.ID // the key with every scope made it
			if v == other {
				by = parseUUID(t, otherID)
			}
			return r.newKeyBelow(t, v, by, cardvault.ScopeAPIKeysWrite).ID.String()
		}, 204},
		{"create webhook", "POST", "/webhooks", hook, cardvault.ScopeWebhooksWrite, nil, 200},
		{"list webhooks", "GET", "/webhooks", "", cardvault.ScopeWebhooksRead, nil, 200},
		{"get webhook", "GET", "/webhooks/{id}", "", cardvault.ScopeWebhooksRead, newWebhook, 200},
		{"head of webhook", "HEAD", "/webhooks/{id}", "", cardvault.ScopeWebhooksRead, newWebhook, 200},
		{"update webhook", "PATCH", "/webhooks/{id}", `{"legacy_hmac":true}`, cardvault.ScopeWebhooksWrite, newWebhook, 200},
		{"delete webhook", "DELETE", "/webhooks/{id}", "", cardvault.ScopeWebhooksWrite, newWebhook, 204},
		{"rotate secret", "POST", "/webhooks/{id}/rotate-secret", "", cardvault.ScopeWebhooksWrite, newWebhook, 200},
		{"revoke secrets", "DELETE", "/webhooks/{id}/previous-secrets", "", cardvault.ScopeWebhooksWrite, newWebhook, 204},
		{"list merchants", "GET", "/merchants", "", cardvault.ScopeMerchantsRead, nil, 200},
		{"rotate payment secret", "POST", "/merchants/{id}/rotate-secret", "", cardvault.ScopePaymentSecretsWrite, newMerchant, 200},
		{"revoke payment secret", "DELETE", "/merchants/{id}/previous-secret", "", cardvault.ScopePaymentSecretsWrite, newMerchant, 204},
		{"test webhook", "POST", "/webhooks/{id}/test", "", cardvault.ScopeWebhooksWrite, newWebhook, 200},
		{"list deliveries", "GET", "/webhooks/{id}/deliveries", "", cardvault.ScopeWebhooksRead, newWebhook, 200},
		{"redeliver", "POST", "/events/{id}/redeliver", "", cardvault.ScopeWebhooksWrite, newEvent, 204},
	} {
		var lacking []cardvault.Scope
		for _, s := range all {
			if s != e.scope {
				lacking = append(lacking, s)
			}
		}
		_, wrongScope := newKey(r.vault, 0, lacking...)
		enough := []cardvault.Scope{e.scope}
		if e.name == "create webhook" || e.name == "update webhook" { // tokens will be sent to it
			enough = append(enough, cardvault.ScopeTokensRead)
		}
		if e.name == "replace session" { // it changes a token
			enough = append(enough, cardvault.ScopeTokensUpdate)
		}
		_, oneScope := newKey(r.vault, 0, enough...)
		if e.scope == cardvault.ScopeAPIKeysWrite {
			oneScope = writer.text
		}
		ids := map[string]string{"": ""}
		if e.object != nil {
			own, theirs := e.object(r.vault), e.object(other)
			ids = map[string]string{
				"own": own, "theirs": theirs, "random": uuid.NewString(), "deleted": deletedToken, "revoked": revokedID,
				"nil": uuid.Nil.String(), "account": r.principal.Account.String(),
				"upper case": strings.ToUpper(own), "braces": "%7B" + own + "%7D", "urn": "urn:uuid:" + own,
				"no hyphens": strings.ReplaceAll(own, "-", ""), "wrapped": "x" + own + "x", "blank": own + "%20",
				"version 1": own[:14] + "1" + own[15:], "short": own[:35], "word": "abc",
			}
		}
		var absent *answer
		for _, key := range []struct {
			name, text string
			status     int // 0: depends on the id
		}{
			{"none", "", 401}, {"malformed", malformed, 401}, {"unknown", unknown, 401}, {"revoked", revoked, 401}, {"expired", expired, 401},
			{"lower case", strings.ToLower(r.key), 401}, {"cut", r.key[:len(r.key)-1], 401}, {"of the live mode", strings.Replace(r.key, "test", "live", 1), 401},
			{"wrong scope", wrongScope, 403}, {"right", r.key, 0}, {"right and nothing else", oneScope, 0},
			// Last: that its calls succeed shows that no other key made them.
			{"other", otherKey, 0},
		} {
			for kind, id := range ids {
				where := fmt.Sprintf("%s with key %s and id %s", e.name, key.name, kind)
				mine := kind == "own" || kind == "upper case"
				if mine && e.object != nil {
					id = e.object(r.vault) // a fresh one, since it may be deleted
				}
				if kind == "upper case" {
					id = strings.ToUpper(id)
				}
				want := key.status
				if want == 0 {
					want = e.status
					if e.object != nil && !mine && !(key.name == "other" && kind == "theirs" && !strings.Contains(e.path, paid)) || key.name == "other" && mine {
						want = 404
					}
				}
				var headers []string
				if key.text != "" {
					headers = []string{"X-Api-Key", key.text}
				}
				a := send(t, r.handler, e.method, strings.ReplaceAll(e.path, "{id}", id), e.body, headers...)
				checkCommon(t, e.method, a)
				if a.status != want {
					t.Errorf("%s: status %d, not %d: %s", where, a.status, want, a.body)
				}
				if a.status != 404 {
					continue
				}
				// Missing and foreign objects have the same answer, byte for byte.
				a.header.Del("X-Request-Id")
				if absent == nil {
					absent = a
				}
				if a.body != absent.body || headerText(a.header) != headerText(absent.header) {
					t.Errorf("%s: a 404 differs from the others: %+v and %+v", where, absent, a)
				}
			}
		}
	}
}
