package browser_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/uuid"
)

// wantFailure waits for an error event and checks its action.
func (p *tab) wantFailure(reason, action string) detail {
	p.t.Helper()
	d := p.await("error")
	if d.ReasonCode != reason || d.Action != action || d.Message == "" {
		p.t.Fatalf("error %+v, not %s with action %s", d, reason, action)
	}
	return d
}

const complete = "/complete-action"

// TestSubmitBeforeReady submits before the session is read.
func TestSubmitBeforeReady(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	release := make(chan struct{})
	r.wire.set(only("GET", hold(release)))
	p := r.open(visit{})
	p.submit()
	r.wire.await(t, 1, "GET", "/sessions/")
	p.enter()
	want(&p.world, 0, `events.filter((e) => e.type !== "change").length`)
	r.wire.set(nil)
	close(release)
	p.await("ready")
	p.wantFailure("incomplete", "correct")
	p.enterCard(visa)
	p.submit()
	p.wantToken(p.await("success"), "411111******0005")
}

// TestDoubleSubmit submits in every possible way at once.
func TestDoubleSubmit(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	release := make(chan struct{})
	p := r.ready(visit{})
	p.enterCard(visa)
	r.wire.set(only("POST", hold(release)))
	want(&p.world, true, `(() => { const first = card.submit(); return card.submit() === first; })()`)
	p.keys(kb.Enter + kb.Enter)
	p.do(`document.querySelector("#after").click()`)
	r.wire.await(t, 1, "POST", complete)
	p.submit()
	close(release)
	p.wantToken(p.await("success"), "411111******0005")
	// A finished component stays finished.
	want(&p.world, true, `card.submit().then((d) => d.token_id === events.at(-1).detail.token_id)`)
	if n := len(r.wire.seen("POST", complete)); n != 1 || r.tokens() != 1 || p.count("success") != 1 {
		t.Errorf("%d completions, %d tokens, %d events", n, r.tokens(), p.count("success"))
	}
}

// TestPromise checks the promise that submit returns.
func TestPromise(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{})
	got := eval[string](&p.world, `card.submit().then(() => "fulfilled", (e) =>
		[e instanceof Error, e.name, e.reason_code, e.action, e.message === events.at(-1).detail.message].join())`)
	if got != "true,CardEntryError,incomplete,correct,true" {
		t.Errorf("rejected: %s", got)
	}
	p.read = eval[int](&p.world, "events.length")
	p.enterCard(visa)
	id := eval[string](&p.world, `card.submit().then((d) => Object.keys(d).join() === "token_id" && d.token_id)`)
	if d := p.await("success"); d.TokenID != id {
		t.Errorf("promised %s, the event has %s", id, d.TokenID)
	}
}

// TestNetworkFailure fails in each way that a network can, and tries again.
func TestNetworkFailure(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]tamper{
		"connection cut": cut,
		"503":            say(503, `{"status":"503","classifier":"SERVICE_UNAVAILABLE","message":"…"}`, "Retry-After", "5"),
		"500":            say(500, ``),
		"no JSON":        say(200, `<!doctype html><title>Welcome to our hotel</title>`),
		"done, and the answer cut": func(_ http.ResponseWriter, r *http.Request, vault http.Handler) {
			vault.ServeHTTP(discard{}, r)
			panic(http.ErrAbortHandler)
		},
		"done, and the answer lost": func(w http.ResponseWriter, r *http.Request, vault http.Handler) {
			vault.ServeHTTP(discard{}, r)
			say(502, ``)(w, r, vault)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			p := r.ready(visit{})
			p.allow(`network error|Fetch failed`)
			p.enterCard(visa)
			r.wire.set(only("POST", failure))
			p.submit()
			p.wantFailure("network_error", "retry")
			if got := p.value("number"); got != "4111 1100 0000 0005" {
				t.Errorf("the number is %s after it", got)
			}
			r.wire.set(nil)
			p.submit()
			p.wantToken(p.await("success"), "411111******0005")
			if n := r.tokens(); n != 1 {
				t.Errorf("%d tokens", n)
			}
		})
	}
}

// A discard is an http.ResponseWriter that drops the answer.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

// TestNoSession fails to read the session, and tries again.
func TestNoSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.wire.set(only("GET", cut))
	p := r.open(visit{})
	p.allow(`network error|Fetch failed`)
	p.wantFailure("network_error", "retry")
	p.enter()
	r.wire.set(nil)
	p.submit() // until then the fields are unknown
	p.await("ready")
	p.wantFailure("incomplete", "correct")
	p.enterCard(visa)
	p.submit()
	p.wantToken(p.await("success"), "411111******0005")
	if p.count("ready") != 1 {
		t.Errorf("it was ready %d times", p.count("ready"))
	}
}

// TestNoAnswer waits for an answer for 30 hurried seconds.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{hurry: []int{30_000}})
	p.allow(`Fetch failed`)
	p.enterCard(visa)
	r.wire.set(only("POST", hold(nil)))
	p.submit()
	p.wantFailure("network_error", "retry")
	r.wire.set(nil)
	p.submit()
	p.await("success")
}

// TestExpiredSession finds the session expired: when it is read, and when it is completed.
// With a new session the shopper continues where they were.
func TestExpiredSession(t *testing.T) {
	t.Parallel()
	t.Run("when read", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		p := r.open(visit{session: uuid.NewString()})
		p.refuses(404)
		p.wantFailure("session_expired", "new_session")
		p.enter()
		p.renew()
		p.enterCard(visa)
		p.submit()
		p.wantToken(p.await("success"), "411111******0005")
	})
	t.Run("when completed", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		p := r.ready(visit{shop: r.abroad, attributes: `cardholder-name="optional"`})
		p.refuses(404)
		p.fill("name", "A N Other")
		p.enterCard(visa)
		r.wire.set(only("POST", func(w http.ResponseWriter, req *http.Request, vault http.Handler) {
			req.URL.Path = "/sessions/" + uuid.NewString() + complete
			vault.ServeHTTP(w, req)
		}))
		p.submit()
		p.wantFailure("session_expired", "new_session")
		r.wire.set(nil)
		p.renew()
		for field, value := range map[string]string{"name": "A N Other", "number": "4111 1100 0000 0005", "code": "737"} {
			if got := p.value(field); got != value {
				t.Errorf("%s is %q with the new session", field, got)
			}
		}
		p.submit()
		p.wantToken(p.await("success"), "411111******0005")
		if n := len(p.rig.wire.seen("GET", "/frame.html")); n != 1 {
			t.Errorf("the frame was loaded %d times", n)
		}
	})
}

// renew gives the component a new session.
func (p *tab) renew() {
	p.t.Helper()
	p.do(`card.setAttribute("session-id", %s)`, p.rig.newSession())
	p.await("ready")
}

// TestRefusedCards has the vault refuse cards that look valid to the component, until the
// session accepts no more.
func TestRefusedCards(t *testing.T) {
	t.Parallel()
	r := newRig(t, &cardvault.Options{Schemes: []card.Scheme{card.VISA}})
	p := r.ready(visit{})
	p.enterCard(entered{"5555550000000002", visa.expiry, visa.code})
	for range 4 {
		p.submit()
		p.wantFailure("unsupported_scheme", "correct")
		p.frame.wait(`document.activeElement.id === "number"`)
		want(p.frame, "true", `document.querySelector("#number").getAttribute("aria-invalid")`)
		p.frame.wait(`document.querySelector("#number-error").textContent.trim() !== ""`)
	}
	p.submit()
	p.wantFailure("too_many_attempts", "new_session")
	p.renew()
	p.fill("number", visa.number)
	p.submit()
	p.wantToken(p.await("success"), "411111******0005")
}

// TestRefusedFields shows each reason of a refusal at its field.
func TestRefusedFields(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{})
	p.enterCard(visa)
	for reason, field := range map[string]string{
		"invalid_account_number": "number", "unsupported_scheme": "number",
		"invalid_expiry_date": "expiry", "card_expired": "expiry", "invalid_security_code": "code",
	} {
		r.wire.set(only("POST", say(200, `{"data":{"reason":"…","reason_code":"`+reason+`"},"status":"failed","next_action":"tokenize_card"}`)))
		p.submit()
		p.wantFailure(reason, "correct")
		p.frame.wait(`document.activeElement.id === %s`, field)
		p.frame.wait(`document.getElementById(%s).getAttribute("aria-invalid") === "true"`, field)
		want(p.frame, 1, `document.querySelectorAll("[aria-invalid=true]").length`)
		// A new value is tried again.
		p.fill(field, map[string]string{"number": visa.number, "expiry": visa.expiry, "code": visa.code}[field])
		p.noError(field)
	}
	for reason, body := range map[string]string{
		"identification_failed": `{"data":{"reason":"…","reason_code":"identification_failed"},"status":"failed"}`,
		"too_many_attempts":     `{"data":{"reason":"…","reason_code":"too_many_attempts"},"status":"failed"}`,
	} {
		r.wire.set(only("POST", say(200, body)))
		p.submit()
		p.wantFailure(reason, "new_session")
		p.renew()
	}
	r.wire.set(nil)
	p.submit()
	p.wantToken(p.await("success"), "411111******0005")
}

// TestRateLimit reads the session too often.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	limit := say(429, `{"status":"429","classifier":"RATE_LIMITED","message":"…"}`, "Retry-After", "7")
	r.wire.set(only("GET", limit))
	p := r.open(visit{})
	p.refuses(429)
	if d := p.wantFailure("rate_limited", "retry"); d.RetryAfter != 7 {
		t.Errorf("retry after %d s", d.RetryAfter)
	}
	p.enter()
	r.wire.set(only("POST", limit))
	p.submit()
	p.await("ready")
	p.wantFailure("incomplete", "correct")
	p.enterCard(visa)
	p.submit()
	if d := p.wantFailure("rate_limited", "retry"); d.RetryAfter != 7 {
		t.Errorf("retry after %d s", d.RetryAfter)
	}
	r.wire.set(nil)
	p.submit()
	p.wantToken(p.await("success"), "411111******0005")
}

// TestPayloadRefused uses a key that the vault has changed meanwhile.
func TestPayloadRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{})
	p.refuses(422)
	p.enterCard(visa)
	r.wire.set(only("POST", func(w http.ResponseWriter, req *http.Request, vault http.Handler) {
		req.Body = http.NoBody
		req.ContentLength = 0
		say(422, `{"status":"422","classifier":"VALIDATION_FAILED","message":"…","validation_errors":[{"field":"result.enc_payload","code":"undecryptable","message":"…"}]}`)(w, req, vault)
	}))
	reads := len(r.wire.seen("GET", "/sessions/"))
	p.submit()
	p.wantFailure("payload_refused", "retry")
	r.wire.set(nil)
	p.submit()
	p.wantToken(p.await("success"), "411111******0005")
	if n := len(r.wire.seen("GET", "/sessions/")) - reads; n != 1 {
		t.Errorf("the key was fetched %d times", n)
	}
}

// TestReplace enters a card in place of the card of a token. A refused one changes nothing.
func TestReplace(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	token, err := r.vault.Tokenize(t.Context(), cardvault.NewSessionID(uuid.MustParse(r.newSession())), cardvault.Card{
		PAN: card.NewPAN([]byte(visa.number)), Expiry: card.Expiry{Month: 12, Year: 2030},
	})
	if err != nil {
		t.Fatal(err)
	}
	session, err := r.vault.ReplaceSession(t.Context(), token.ID, nil)
	if err != nil {
		t.Fatal(err)
	}

	p := r.open(visit{session: session.ID.UUID().String(), attributes: `cardholder-name="required"`})
	if d := p.await("ready"); d.Action != "replace_card" || d.MaskedAccountNumber != "411111******0005" || d.Scheme != "VISA" {
		t.Errorf("ready: %+v", d)
	}
	p.enter()
	want(p.frame, "name,number,expiry,code", `[...document.querySelectorAll("input")].filter((e) => e.checkVisibility()).map((e) => e.id).join()`)
	p.axe("replace")
	p.screenshot("replace")
	p.submit()
	p.wantFailure("incomplete", "correct")
	if k := r.token(token.ID.String()); k.LastFour != visa.number[len(visa.number)-4:] {
		t.Errorf("the token has the card %s", k.MaskedAccountNumber)
	}

	p.fill("name", "Ada Lovelace")
	p.enterCard(amex)
	p.submit()
	if d := p.await("success"); d.TokenID != token.ID.String() || !r.hasCode(d.TokenID) {
		t.Errorf("success: %+v", d)
	}
	if k := r.token(token.ID.String()); k.Scheme != card.AmericanExpress || k.LastFour != amex.number[len(amex.number)-4:] || r.tokens() != 1 {
		t.Errorf("the token has the card %s, one of %d", k.MaskedAccountNumber, r.tokens())
	}
}

// TestRefresh enters the security code of a stored card again.
func TestRefresh(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		entered
		scheme, mask string
	}{
		"VISA":             {visa, "VISA", "411111******0005"},
		"American Express": {amex, "American Express", "378282*****0008"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			token, err := r.vault.Tokenize(t.Context(), cardvault.NewSessionID(uuid.MustParse(r.newSession())), cardvault.Card{
				PAN: card.NewPAN([]byte(c.number)), Expiry: card.Expiry{Month: 12, Year: 2030},
			})
			if err != nil {
				t.Fatal(err)
			}
			session, err := r.vault.RefreshSession(t.Context(), token.ID, nil)
			if err != nil {
				t.Fatal(err)
			}
			p := r.open(visit{session: session.ID.UUID().String()})
			if d := p.await("ready"); d.Action != "refresh_security_code" || d.MaskedAccountNumber != c.mask || d.Scheme != c.scheme {
				t.Errorf("ready: %+v", d)
			}
			p.enter()
			want(p.frame, "code", `[...document.querySelectorAll("input")].filter((e) => e.checkVisibility()).map((e) => e.id).join()`)
			if n := p.accessible("code"); !strings.Contains(n.description, c.mask[len(c.mask)-4:]) {
				t.Errorf("to assistive technology the code is %+v", n)
			}
			p.axe("refresh")
			p.screenshot("refresh")
			p.submit()
			p.wantFailure("incomplete", "correct")
			p.focus("code")
			p.keys(c.code + kb.Enter)
			if d := p.await("success"); d.TokenID != token.ID.String() || !r.hasCode(d.TokenID) {
				t.Errorf("success: %+v", d)
			}
			if n := r.tokens(); n != 1 {
				t.Errorf("%d tokens", n)
			}
		})
	}
}
