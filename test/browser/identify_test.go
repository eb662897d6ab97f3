package browser_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// A bank identifies shoppers: it accepts their cards, and keeps the browser waiting.
type bank struct {
	state atomic.Pointer[string] // the session's answer; nil for the vault's own
	reads atomic.Int64
}

const (
	wait      = `{"next_action":"wait"}`
	unproven  = `{"data":{"reason":"…","reason_code":"identification_failed"},"status":"failed"}`
	challenge = `{"next_action":"challenge","data":{"url":"%"}}`
)

func (b *bank) say(state string) { b.state.Store(&state) }

func (b *bank) tamper(w http.ResponseWriter, r *http.Request, vault http.Handler) {
	state := b.state.Load()
	if state == nil || !strings.HasPrefix(r.URL.Path, "/sessions/") {
		vault.ServeHTTP(w, r)
		return
	}
	if r.Method == "POST" {
		vault.ServeHTTP(discard{}, r)
	} else {
		b.reads.Add(1)
	}
	say(200, *state)(w, r, vault)
}

// identified opens a page whose card the bank has accepted.
func (r *rig) identified(b *bank, v visit) *tab {
	r.t.Helper()
	v.hurry = []int{1000, 2000}
	v.before = openRoots
	p := r.ready(v)
	p.enterCard(visa)
	r.wire.set(b.tamper)
	p.submit()
	return p
}

// TestWait waits for a bank.
func TestWait(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	b := new(bank)
	b.say(wait)
	p := r.identified(b, visit{})
	reads := len(r.wire.seen("GET", "/sessions/"))
	r.wire.await(t, reads+3, "GET", "/sessions/")
	p.frame.wait(`document.querySelector("#status").textContent.trim() !== ""`)
	p.axe("waiting")
	p.wantFit("waiting")
	p.screenshot("waiting")
	want(p.frame, true, `[...document.querySelectorAll("input")].every((e) => e.disabled || e.readOnly)`)
	if n := p.count("success") + p.count("error"); n != 0 {
		t.Errorf("%d results while it waits", n)
	}
	// A second submit waits too.
	p.submit()
	b.state.Store(nil)
	p.wantToken(p.await("success"), "411111******0005")
	if n := len(r.wire.seen("POST", complete)); n != 1 {
		t.Errorf("%d completions", n)
	}
}

// TestWaitAnew reloads the page while the bank is deciding.
func TestWaitAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	b := new(bank)
	b.say(wait)
	session := r.newSession()
	r.identified(b, visit{session: session})
	p := r.open(visit{session: session, hurry: []int{1000, 2000}})
	p.enter()
	p.frame.wait(`document.querySelector("#status").textContent.trim() !== ""`)
	b.state.Store(nil)
	p.wantToken(p.await("success"), "411111******0005")
}

// TestWaitInVain waits until the bank refuses, or the session ends.
func TestWaitInVain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer tamper
		reason string
	}{
		"identification failed": {say(200, unproven), "identification_failed"},
		"session over":          {say(404, `{"status":"404","classifier":"NOT_FOUND","message":"…"}`), "session_expired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			b := new(bank)
			b.say(wait)
			p := r.identified(b, visit{})
			p.refuses(404)
			r.wire.await(t, 2, "GET", "/sessions/")
			r.wire.set(only("GET", test.answer))
			p.wantFailure(test.reason, "new_session")
			r.wire.set(nil)
			p.renew()
			p.submit()
			p.wantToken(p.await("success"), "411111******0005")
		})
	}
}

// TestWaitThroughFailures waits while the connection fails.
func TestWaitThroughFailures(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	b := new(bank)
	b.say(wait)
	p := r.identified(b, visit{})
	p.allow(`network error|Fetch failed|status of 503`)
	r.wire.await(t, 2, "GET", "/sessions/")
	r.wire.set(only("GET", cut))
	d := len(r.wire.seen("GET", "/sessions/"))
	r.wire.await(t, d+1, "GET", "/sessions/")
	r.wire.set(nil)
	// It continues by itself, or reports an error with the action retry.
	p.wait(`events.some((e) => e.type === "success" || e.type === "error")`)
	if p.count("error") > 0 {
		p.wantFailure("network_error", "retry")
		p.submit()
	}
	p.wantToken(p.await("success"), "411111******0005")
	if n := r.tokens(); n != 1 {
		t.Errorf("%d tokens", n)
	}
}

const frames = `[...roots[0].querySelectorAll("iframe")]`

// TestChallenge shows the page of a bank.
func TestChallenge(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	b := new(bank)
	url := r.abroad.origin + "/bank"
	b.say(strings.Replace(challenge, "%", url, 1))
	p := r.identified(b, visit{})
	if d := p.await("challenge"); d.URL != url {
		t.Errorf("challenge at %s", d.URL)
	}
	p.wait(frames + `.length === 2`)
	want(&p.world, url, frames+`[1].src`)
	want(&p.world, true, frames+`[1].title !== "" && `+frames+`[1].title !== `+frames+`[0].title`)
	p.wait(`document.activeElement === card && roots[0].activeElement === ` + frames + `[1]`)
	want(&p.world, true, frames+`[0].getBoundingClientRect().bottom <= `+frames+`[1].getBoundingClientRect().top + 1`)
	p.axe("challenge")
	p.screenshot("challenge")
	// It stays the same as long as the state does.
	p.do(`globalThis.shown = ` + frames + `[1]`)
	reads := len(r.wire.seen("GET", "/sessions/"))
	r.wire.await(t, reads+2, "GET", "/sessions/")
	want(&p.world, true, frames+`[1] === shown`)
	want(&p.world, 1, `events.filter((e) => e.type === "challenge").length`)
	b.say(wait)
	p.wait(frames + `.length === 1`)
	b.state.Store(nil)
	p.wantToken(p.await("success"), "411111******0005")
	want(&p.world, 1, frames+`.length`)
}

// TestOwnChallenge lets the shop show the page itself.
func TestOwnChallenge(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	b := new(bank)
	v := visit{hurry: []int{1000, 2000}, before: openRoots}
	p := r.ready(v)
	p.do(`card.addEventListener("challenge", (e) => e.preventDefault())`)
	p.enterCard(visa)
	b.say(strings.Replace(challenge, "%", r.abroad.origin+"/bank", 1))
	r.wire.set(b.tamper)
	p.keys(kb.Enter)
	p.await("challenge")
	reads := len(r.wire.seen("GET", "/sessions/"))
	r.wire.await(t, reads+2, "GET", "/sessions/")
	want(&p.world, 1, frames+`.length`)
	b.state.Store(nil)
	p.wantToken(p.await("success"), "411111******0005")
}

// TestBadChallenge ignores addresses that a bank cannot have.
func TestBadChallenge(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	b := new(bank)
	b.say(wait)
	p := r.identified(b, visit{})
	for _, url := range []string{"javascript:document.title='forged'", "data:text/html,x", "http://bank.example/", "//bank.example/", "ftp://127.0.0.1/", "", "x", "blob:https://bank.example/x"} {
		b.say(strings.Replace(challenge, "%", url, 1))
		reads := len(r.wire.seen("GET", "/sessions/"))
		r.wire.await(t, reads+2, "GET", "/sessions/")
	}
	want(&p.world, 1, frames+`.length`)
	want(&p.world, "Shop", `document.title`)
	if n := p.count("challenge"); n != 0 {
		t.Errorf("%d challenges", n)
	}
	b.state.Store(nil)
	p.wantToken(p.await("success"), "411111******0005")
}
