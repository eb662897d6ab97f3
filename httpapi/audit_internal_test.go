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
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{1}, 32))
	check(t, err)
	v, err := cardvault.New(t.Context(), memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox, Audit: &cardvault.AuditOptions{}})
	check(t, err)
	defer v.Close()
	weak, err := v.CreateAPIKey(t.Context(), "weak", []cardvault.Scope{cardvault.ScopeFingerprintsRead}, nil)
	check(t, err)
	h, err := NewHandler(v, nil)
	check(t, err)

	type kind struct{ operation, classifier string }
	want := map[kind]int{}
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
			want[kind{operation, "UNAUTHORIZED"}]++
			send(method, path, weak.Text.Text())
			want[kind{operation, "INSUFFICIENT_SCOPE"}]++
		}
	}
	send("GET", "/nothing", "")
	want[kind{"request", "NOT_FOUND"}]++
	send("PUT", "/tokens", "")
	want[kind{"request", "METHOD_NOT_ALLOWED"}]++
	send("GET", "/sessions/"+uuid.NewString(), "")
	want[kind{"session.read", "NOT_FOUND"}]++
	send("GET", "/tokens", "vk_test_nothing")
	want[kind{"authenticate", "UNAUTHORIZED"}]++

	got := map[kind]int{}
	for _, handle := range []*cardvault.Vault{v, v.In(uuid.Nil)} {
		check(t, handle.ExportAudit(t.Context(), new(bytes.Buffer), time.Time{}, time.Time{}))
		for r, err := range handle.AllAuditRecords(t.Context(), nil) {
			check(t, err)
			if r.Outcome == audit.Refused {
				got[kind{r.Operation, r.Error}]++
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
