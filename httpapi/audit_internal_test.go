package httpapi

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// file is the path of a file, which is the same for every client.
var file = regexp.MustCompile(`^/(openapi\.(yaml|json)|sdk/v1/[\w.-]+)$`)

// TestAuditRoutes: every route has an operation in the audit log, and every refused request
// one record. A new route needs an entry in operations.
func TestAuditRoutes(t *testing.T) {
	v, weak := auditedVault(t, cardvault.ScopeFingerprintsRead)
	h, err := NewHandler(v, nil)
	check(t, err)

	want := map[refusal]int{}
	send := func(method, path, key string) {
		r := httptest.NewRequest(method, path, strings.NewReader(""))
		if key != "" {
			r.Header.Set("X-Api-Key", key)
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	for _, r := range routes {
		for method, e := range r.methods {
			c := &call{endpoint: e, route: &r}
			operation := c.operation()
			switch {
			case operation == "request" && (method == "OPTIONS" || method == "GET" && file.MatchString(r.pattern())):
				continue
			case operation == "request":
				t.Errorf("%s %s has no operation", method, r.pattern())
				continue
			case e.public:
				continue // its id is the credential
			}
			path := strings.ReplaceAll(r.pattern(), "*", uuid.NewString())
			send(method, path, "")
			want[refusal{operation, "UNAUTHORIZED"}]++
			send(method, path, weak)
			want[refusal{operation, "INSUFFICIENT_SCOPE"}]++
		}
	}
	send("GET", "/nothing", "")
	want[refusal{"request", "NOT_FOUND"}]++
	send("PUT", "/tokens", "")
	want[refusal{"request", "METHOD_NOT_ALLOWED"}]++
	send("GET", "/sessions/"+uuid.NewString(), "")
	want[refusal{"session.read", "NOT_FOUND"}]++
	send("GET", "/tokens", "vk_test_nothing")
	want[refusal{"authenticate", "UNAUTHORIZED"}]++

	refusals(t, v, want)
}

// TestAuditEarly: so have requests that are refused before the vault is called.
func TestAuditEarly(t *testing.T) {
	v, key := auditedVault(t, cardvault.AllScopes()...)
	h, err := NewHandler(v, &Options{RateLimit: RateLimit{PerSecond: 0.001, Burst: 3}})
	check(t, err)
	for _, body := range []string{"{", `"` + strings.Repeat("a", maxBody), "", ""} {
		r := httptest.NewRequest("POST", "/cde-import", strings.NewReader(body))
		r.Header.Set("X-Api-Key", key)
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	refusals(t, v, map[refusal]int{{"token.import", "MALFORMED_REQUEST"}: 2, {"token.import", "PAYLOAD_TOO_LARGE"}: 1, {"token.import", "RATE_LIMITED"}: 1})
}

// auditedVault returns a vault with an audit log, and the text of an API key.
func auditedVault(t *testing.T, scopes ...cardvault.Scope) (v *cardvault.Vault, key string) {
	t.Helper()
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{1}, 32))
	check(t, err)
	v, err = cardvault.New(t.Context(), memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox, Audit: &cardvault.AuditOptions{}})
	check(t, err)
	t.Cleanup(func() { v.Close() })
	made, err := v.CreateAPIKey(t.Context(), "key", scopes, nil)
	check(t, err)
	return v, made.Text.Text()
}

// A refusal is what a record says of a request that was refused.
type refusal struct{ operation, classifier string }

// refusals compares the records of refused requests with those wanted.
func refusals(t *testing.T, v *cardvault.Vault, want map[refusal]int) {
	t.Helper()
	got := map[refusal]int{}
	for _, handle := range []*cardvault.Vault{v, v.In(uuid.Nil)} {
		check(t, handle.ExportAudit(t.Context(), new(bytes.Buffer), time.Time{}, time.Time{}))
		for r, err := range handle.AllAuditRecords(t.Context(), nil) {
			check(t, err)
			if r.Outcome == audit.Refused {
				got[refusal{r.Operation, r.Error}]++
				if r.Actor.Address != "192.0.2.1" || r.Actor.RequestID == "" {
					t.Errorf("actor of %s is %+v", r.Operation, r.Actor)
				}
			}
		}
	}
	for k, n := range want {
		if got[k] != n {
			t.Errorf("%v has %d records for %d requests", k, got[k], n)
		}
	}
	for k, n := range got {
		if want[k] == 0 {
			t.Errorf("%v has %d records for no request", k, n)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var _ http.Handler = (*handler)(nil)
