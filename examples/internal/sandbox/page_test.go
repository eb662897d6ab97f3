package sandbox

import (
	"bytes"
	"encoding/base64"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/idv"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// TestEvents keeps the latest events of an account.
func TestEvents(t *testing.T) {
	var e events
	mine, other := uuid.New(), uuid.New()
	for n := range maxEvents + 10 {
		deleted := &cardvault.Event{Account: mine, Type: receive.TokenDeleted}
		if n%2 == 1 {
			deleted.Account = other
		}
		if err := e.Event(t.Context(), deleted); err != nil {
			t.Fatal(err)
		}
	}
	all := e.since(mine, 0)
	if len(all) != maxEvents/2 || all[0].Number != 11 || all[len(all)-1].Number != maxEvents+9 {
		t.Errorf("%d events, from %d on", len(all), all[0].Number)
	}
	if after := e.since(mine, maxEvents); len(after) != 5 || after[0].Number != maxEvents+1 {
		t.Errorf("after event %d: %v", maxEvents, after)
	}
	if none := e.since(uuid.New(), 0); none == nil || len(none) > 0 {
		t.Errorf("an account without events has %v", none)
	}
}

// TestVisits: a cookie is valid for one visit, for a limited time, under the key that made
// it.
func TestVisits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := visits("a key that nobody guesses")
		replica := v
		cookies := map[string]bool{}
		for range 1000 {
			cookies[v.begin()] = true
		}
		if len(cookies) != 1000 {
			t.Errorf("a thousand visits have %d cookies", len(cookies))
		}
		cookie := v.begin()
		if !v.know(cookie) || !replica.know(cookie) || visits("another").know(cookie) {
			t.Error("a cookie is not known under its key, or is known under another")
		}
		raw, err := base64.RawURLEncoding.DecodeString(cookie)
		if err != nil {
			t.Fatal(err)
		}
		for i := range raw {
			forged := bytes.Clone(raw)
			forged[i] ^= 1
			if v.know(base64.RawURLEncoding.EncodeToString(forged)) {
				t.Errorf("a cookie with another byte %d is accepted", i)
			}
		}
		for _, other := range []string{"", "x", cookie[1:], cookie + "A", cookie + "="} {
			if v.know(other) {
				t.Errorf("%q is accepted", other)
			}
		}
		time.Sleep(visitTime - time.Second)
		if !v.know(cookie) {
			t.Error("a visit ended early")
		}
		time.Sleep(2 * time.Second)
		if v.know(cookie) {
			t.Error("a visit did not end")
		}
	})
}

// TestChallenge confirms and refuses identifications.
func TestChallenge(t *testing.T) {
	network, err := simnet.New(t.Context(), memstore.New(), &simnet.Options{ChallengeURL: "http://127.0.0.1/simulator/identifications/"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { network.Close() })
	server := httptest.NewServer(newChallenges(network, slog.New(slog.DiscardHandler)))
	t.Cleanup(server.Close)
	at := server.URL + "/simulator/identifications/"
	request := func(method, url, body string) *http.Request {
		r, err := http.NewRequest(method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return r
	}
	for answer, want := range map[string]idv.State{"confirm": idv.Passed, "refuse": idv.Failed} {
		begun, err := network.IDV().Identify(t.Context(), &idv.Request{
			IdempotencyKey: answer,
			Scheme:         card.VISA,
			PAN:            simnet.ScenarioPAN(card.VISA, 70),
		})
		if err != nil {
			t.Fatal(err)
		}
		url := at + begun.Reference
		status, h, html := send(t, request("GET", url, ""))
		if status != 200 || !bytes.Contains(html, []byte("sandbox")) || !bytes.Contains(html, []byte(`value="`+answer+`"`)) {
			t.Errorf("the challenge is %d %s", status, html)
		}
		if csp := h.Get("Content-Security-Policy"); strings.Contains(csp, "frame-ancestors") || !strings.Contains(csp, "form-action 'self'") {
			t.Errorf("its policy is %q", csp)
		}
		foreigner := request("POST", url, "answer="+answer)
		foreigner.Host = "evil.example"
		stranger := request("POST", url, "answer="+answer)
		stranger.Header.Set("Sec-Fetch-Site", "cross-site")
		for _, x := range []struct {
			status int
			r      *http.Request
		}{
			{421, foreigner},
			{403, stranger},
			{422, request("POST", url, "")},
			{422, request("POST", url, "answer=maybe")},
			{422, request("POST", url+"?answer="+answer, "")},
			{422, request("POST", url, strings.Repeat("x", 2<<10)+"&answer="+answer)},
			{404, request("DELETE", url, "")},
			{404, request("GET", at+uuid.NewString(), "")},
			{404, request("POST", at+uuid.NewString(), "answer="+answer)},
			{404, request("GET", at+"x", "")},
			{404, request("GET", at, "")},
		} {
			if status, _, body := send(t, x.r); status != x.status {
				t.Errorf("%s %s answers %d %s, want %d", x.r.Method, x.r.URL.Path, status, body, x.status)
			}
		}
		if state, err := network.Control().Identification(t.Context(), begun.Reference); err != nil || state.ChallengeURL == "" {
			t.Fatalf("a refused answer has ended the challenge: %+v, %v", state, err)
		}
		status, _, html = send(t, request("POST", url, "answer="+answer))
		if status != 200 || !bytes.Contains(html, []byte(`id="answered"`)) || bytes.Contains(html, []byte("<button")) {
			t.Errorf("answered, the challenge is %d %s", status, html)
		}
		network.Advance(time.Minute)
		if state, err := network.Control().Identification(t.Context(), begun.Reference); err != nil || state.State != want {
			t.Errorf("after %s the identification is %+v, %v", answer, state, err)
		}
	}
	for _, name := range []string{"challenge.css", "icon.svg"} {
		if status, h, _ := send(t, request("GET", at+name, "")); status != 200 || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s answers %d", name, status)
		}
	}
}

func send(t *testing.T, r *http.Request) (status int, h http.Header, body []byte) {
	t.Helper()
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	if body, err = io.ReadAll(w.Body); err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, w.Header, body
}
