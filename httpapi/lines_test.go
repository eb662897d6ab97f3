package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/google/uuid"
)

// newAudited returns a rig with an audit log of n imports, which are written.
func newAudited(t *testing.T, n int, http *httpapi.Options) *rig {
	r := newRig(t, &cardvault.Options{Audit: &cardvault.AuditOptions{}}, http)
	t.Cleanup(func() { r.vault.Close() })
	for range n {
		r.importCard(t)
	}
	time.Sleep(2 * time.Second)
	return r
}

// stream sends a request for lines, and runs then after the first write.
func (r *rig) stream(ctx context.Context, then func()) *lateWriter {
	request := httptest.NewRequestWithContext(ctx, "GET", "/audit-records?operation=token.import", nil)
	request.Header = http.Header{"X-Api-Key": {r.key}, "Accept": {asLines}}
	w := &lateWriter{httptest.NewRecorder(), then}
	r.handler.ServeHTTP(w, request)
	return w
}

const asLines = "application/x-ndjson"

// recordsOf returns the records of a streamed answer.
func recordsOf(t *testing.T, body string) (records []*audit.Record, rest string) {
	t.Helper()
	in := bufio.NewScanner(strings.NewReader(body))
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		r := new(audit.Record)
		if err := json.Unmarshal(in.Bytes(), r); err != nil || r.Sequence == 0 {
			rest += in.Text()
			continue
		}
		records = append(records, r)
	}
	return records, rest
}

// TestAuditPages: pages and streams have the same records, in both orders, whatever the size
// of a page. Reading the log is recorded, and a stream ends at what was written before it.
func TestAuditPages(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const imports = 1203
		r := newAudited(t, imports, nil)
		for _, sort := range []string{"asc", "desc"} {
			all, rest := recordsOf(t, r.do(t, "GET", "/audit-records?operation=token.import&sort=at+"+sort, "", "Accept", asLines).body)
			if len(all) != imports || rest != "" {
				t.Fatalf("%d records as lines, and %q", len(all), rest)
			}

			var paged []*audit.Record
			for after := ""; ; {
				var page struct {
					Data       []*audit.Record
					Pagination struct{ Next string }
				}
				w := r.do(t, "GET", "/audit-records?operation=token.import&limit=250&sort=at+"+sort+after, "")
				if err := json.Unmarshal([]byte(w.body), &page); err != nil || w.status != 200 {
					t.Fatal(err, w.status, w.body)
				}
				paged = append(paged, page.Data...)
				if page.Pagination.Next == "" {
					break
				}
				after = "&after=" + page.Pagination.Next
			}
			if len(paged) != imports {
				t.Fatalf("%d records in pages", len(paged))
			}
			for i, record := range paged {
				if record.MAC != all[i].MAC || i > 0 && record.At.Before(paged[i-1].At) && sort == "asc" {
					t.Fatalf("record %d is %+v", i, record)
				}
			}
		}

		for limit, want := range map[string]int{"1": 1, "500": 500} {
			if all, _ := recordsOf(t, r.do(t, "GET", "/audit-records?operation=token.import&limit="+limit, "", "Accept", asLines).body); len(all) != want {
				t.Errorf("limit %s: %d lines", limit, len(all))
			}
		}
		time.Sleep(2 * time.Second)
		all, _ := recordsOf(t, r.do(t, "GET", "/audit-records?operation=audit.read", "", "Accept", asLines).body)
		if len(all) < 10 || all[0].Actor.KeyID != r.principal.ID || all[0].AccountID != r.principal.Account {
			t.Errorf("%d records of reading the log", len(all))
		}
	})
}

// TestAuditAccounts: no parameter shows a key the records of another account.
func TestAuditAccounts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newAudited(t, 3, nil)
		other, err := r.vault.CreateAccount(t.Context(), "other", nil)
		if err != nil {
			t.Fatal(err)
		}
		_, key := r.newKey(t, r.vault.In(other.ID), 0, cardvault.AllScopes()...)
		time.Sleep(2 * time.Second)
		page, err := r.vault.AuditRecords(t.Context(), &cardvault.AuditQuery{Limit: 1})
		if err != nil || page.Next == uuid.Nil {
			t.Fatal(page, err)
		}
		for _, query := range []string{"", "?operation=token.import", "?object_id=" + page.Records[0].ObjectID.String(), "?after=" + page.Next.String(), "?after=" + r.principal.ID.String()} {
			for _, accept := range []string{"", asLines} {
				w := send(t, r.handler, "GET", "/audit-records"+query, "", "X-Api-Key", key, "Accept", accept)
				if strings.Contains(w.body, r.principal.Account.String()) || w.status != 200 && w.status != 422 {
					t.Errorf("%s: %d %s", query, w.status, w.body)
				}
			}
		}
	})
}

// TestAuditSlowReader: a client that stops reading a stream loses it in time. An account has a
// few streams at once, and others have room beside them.
func TestAuditSlowReader(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newAudited(t, 600, nil)
		returned := make(chan time.Time, 4)
		dial := serve(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r.handler.ServeHTTP(w, req)
			returned <- time.Now()
		}))
		start := time.Now()
		for range 4 {
			write(t, dial(), "GET /audit-records HTTP/1.1\r\nHost: x\r\nAccept: "+asLines+"\r\nX-Api-Key: "+r.key+"\r\n\r\n")
		}
		time.Sleep(time.Second)
		if w := r.do(t, "GET", "/audit-records", "", "Accept", asLines); w.status != 429 || w.header.Get("Retry-After") == "" {
			t.Errorf("a fifth stream: %d %v", w.status, w.header)
		}
		if w := r.do(t, "GET", "/audit-records", ""); w.status != 200 {
			t.Errorf("a page beside streams: %d", w.status)
		}
		other, err := r.vault.CreateAccount(t.Context(), "other", nil)
		if err != nil {
			t.Fatal(err)
		}
		_, key := r.newKey(t, r.vault.In(other.ID), 0, cardvault.ScopeAuditRead)
		if w := send(t, r.handler, "GET", "/audit-records", "", "Accept", asLines, "X-Api-Key", key); w.status != 200 {
			t.Errorf("a stream of another account: %d", w.status)
		}

		for range 4 {
			if took := (<-returned).Sub(start); took != 30*time.Second {
				t.Errorf("the server gave up after %v", took)
			}
		}
		if w := r.do(t, "GET", "/audit-records", "", "Accept", asLines); w.status != 200 {
			t.Errorf("a stream after these: %d", w.status)
		}
	})
}

// A lateWriter runs a function after the first write.
type lateWriter struct {
	*httptest.ResponseRecorder
	then func()
}

func (w *lateWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseRecorder.Write(b)
	if w.then != nil {
		w.then()
		w.then = nil
	}
	return n, err
}

// TestAuditStreamFails: a stream that fails on its way ends with the failure, in the log too. A
// longer stream than a request may take goes on.
func TestAuditStreamFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := newAudited(t, 1100, nil)
		w := r.stream(t.Context(), func() { time.Sleep(time.Hour) })
		if all, rest := recordsOf(t, w.Body.String()); len(all) != 1100 || rest != "" {
			t.Errorf("%d records of a slow client, and %q", len(all), rest)
		}

		down := errors.New("down")
		w = r.stream(t.Context(), func() { r.store.view.Store(&down) })
		all, rest := recordsOf(t, w.Body.String())
		if len(all) != 500 || !strings.HasPrefix(rest, `{"status":"500"`) || w.Code != 200 {
			t.Errorf("%d records, then %q", len(all), rest)
		}
		if !strings.Contains(r.log.take(), "level=ERROR msg=request") {
			t.Error("the failure is not in the log")
		}
		if a := r.do(t, "GET", "/audit-records", "", "Accept", asLines); a.status < 500 {
			t.Errorf("without a store: %d", a.status)
		}
		r.store.view.Store(nil)

		ctx, cancel := context.WithCancel(t.Context())
		w = r.stream(ctx, cancel)
		if all, _ := recordsOf(t, w.Body.String()); len(all) > 500 {
			t.Errorf("%d records for a client that is gone", len(all))
		}
	})
}
