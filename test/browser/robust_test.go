package browser_test

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/uuid"
)

// made has the vault make the token, and sends another answer.
func made(answer tamper) tamper {
	return func(w http.ResponseWriter, r *http.Request, vault http.Handler) {
		vault.ServeHTTP(discard{}, r)
		answer(w, r, vault)
	}
}

// instead answers a completion like a read of the session.
func instead(w http.ResponseWriter, r *http.Request, vault http.Handler) {
	r.Method, r.Body = "GET", http.NoBody
	r.URL.Path = strings.TrimSuffix(r.URL.Path, complete)
	vault.ServeHTTP(w, r)
}

// TestDescriptions hears the descriptions of a field, and no hidden text.
func TestDescriptions(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{})
	if n := p.accessible("code"); n.description != `"3 digits on the back of the card"` {
		t.Errorf("the code is described as %q", n.description)
	}
	want(p.frame, true, `document.querySelector("#name").disabled`)
}

// TestReplacedSession gives the component another session at every moment possible.
func TestReplacedSession(t *testing.T) {
	t.Parallel()
	t.Run("card under way", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		release := make(chan struct{})
		p := r.ready(visit{})
		p.enterCard(visa)
		r.wire.set(only("POST", hold(release)))
		p.do(`void (globalThis.first = card.submit().catch((e) => e.reason_code))`)
		r.wire.await(t, 1, "POST", complete)
		p.do(`card.sessionId = %s`, r.newSession())
		d := p.wantFailure("session_replaced", "correct")
		want(&p.world, "session_replaced", `first`)
		p.await("ready")
		want(p.frame, d.Message, `document.querySelector("#status.error").textContent`)
		close(release)
		p.frame.do(`new Promise((done) => setTimeout(done))`)
		if n := len(r.wire.seen("POST", complete)); n != 1 {
			t.Errorf("%d completions, want the shopper's one", n)
		}
		if got := p.value("number"); got != "4111 1100 0000 0005" {
			t.Errorf("the number is %s after it", got)
		}
		p.submit()
		p.wantToken(p.await("success"), "411111******0005")
		if n := p.count("success"); n != 1 || len(r.wire.seen("POST", complete)) != 2 {
			t.Errorf("%d successes", n)
		}
	})
	t.Run("card waits", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		release := make(chan struct{})
		p := r.ready(visit{})
		p.enterCard(visa)
		reads := len(r.wire.seen("GET", "/sessions/"))
		r.wire.set(only("GET", hold(release)))
		p.do(`card.sessionId = %s`, r.newSession())
		p.submit()
		r.wire.await(t, reads+1, "GET", "/sessions/")
		p.do(`card.sessionId = %s`, r.newSession())
		close(release)
		p.wantToken(p.await("success"), "411111******0005")
		if n := len(r.wire.seen("POST", complete)); n != 1 || p.count("error") != 0 {
			t.Errorf("%d completions, %d errors", n, p.count("error"))
		}
	})
	for name, failing := range map[string]bool{"success on its way": false, "failure on its way": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			// Messages of ports are held back while held is an array.
			p := r.ready(visit{shop: r.abroad, before: `{
				globalThis.held = null;
				const {set, ...rest} = Object.getOwnPropertyDescriptor(MessagePort.prototype, "onmessage");
				Object.defineProperty(MessagePort.prototype, "onmessage", {...rest, set(f) {
					set.call(this, (event) => (held ? held.push(() => f(event)) : f(event)));
				}});
			}`})
			p.allow(`status of 503|Fetch failed`)
			p.enterCard(visa)
			if failing {
				r.wire.set(only("POST", say(503, ``)))
			}
			p.do(`void (globalThis.held = [], globalThis.first = card.submit().catch((e) => e.reason_code))`)
			r.wire.await(t, 1, "POST", complete)
			p.frame.wait(`document.querySelector("#card").getAttribute("aria-busy") === "false"`)
			p.frame.do(`new Promise((done) => setTimeout(done))`)
			p.wait(`held.length > 0`)
			p.do(`(() => { card.sessionId = %s; const all = held; held = null; for (const tell of all) tell(); })()`, r.newSession())
			p.wantFailure("session_replaced", "correct")
			want(&p.world, "session_replaced", `first`)
			p.await("ready")
			r.wire.set(nil)
			p.enterCard(visa)
			p.submit()
			d := p.await("success")
			p.wantToken(d, "411111******0005")
			want(&p.world, d.TokenID, `card.submit().then((d) => d.token_id)`)
			if p.count("success") != 1 || p.count("error") != 1 {
				t.Errorf("%d successes, %d errors", p.count("success"), p.count("error"))
			}
		})
	}
}

// TestUnreachable has no connection while the frame is loaded, and then has one.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.wire.set(func(w http.ResponseWriter, req *http.Request, vault http.Handler) {
		if strings.HasSuffix(req.URL.Path, "/frame.html") {
			cut(w, req, vault)
		}
		vault.ServeHTTP(w, req)
	})
	p := r.open(visit{hurry: []int{10_000}})
	p.allow(`net::ERR_|network error|recipient window's origin`)
	d := p.wantFailure("unavailable", "check_setup")
	if strings.Contains(d.Message, "base-url") {
		t.Errorf("a shopper reads %q", d.Message)
	}
	// Not at once, and not for ever.
	loads := len(r.wire.seen("GET", "/frame.html"))
	p.submit()
	r.wire.await(t, loads+1, "GET", "/frame.html")
	p.wantFailure("unavailable", "check_setup")
	r.wire.set(nil)
	p.do(`patient()`)
	p.submit()
	p.await("ready")
	p.enter()
	p.wantFailure("incomplete", "correct")
	p.enterCard(visa)
	p.submit()
	p.wantToken(p.await("success"), "411111******0005")
}

// TestOddAnswers receives invalid answers, and reads the session to learn the true one.
// They never lead to a second submission of a card.
func TestOddAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer tamper
		sent   int // in all
	}{
		"nothing said, token made": {made(say(200, `{}`)), 1},
		"nothing said, none made":  {say(200, `{}`), 2},
		"open":                     {instead, 2},
		"done, they say":           {say(409, `{}`), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			p := r.ready(visit{})
			p.refuses(409)
			p.enterCard(visa)
			r.wire.set(only("POST", test.answer))
			p.submit()
			p.wantFailure("network_error", "retry")
			if n := len(r.wire.seen("POST", complete)); n != 1 {
				t.Errorf("%d completions", n)
			}
			r.wire.set(nil)
			p.submit()
			p.wantToken(p.await("success"), "411111******0005")
			if n := len(r.wire.seen("POST", complete)); n != test.sent || r.tokens() != 1 {
				t.Errorf("%d completions, %d tokens", n, r.tokens())
			}
		})
	}
	t.Run("when read", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		r.wire.set(only("GET", say(200, `{}`)))
		p := r.open(visit{})
		p.wantFailure("network_error", "retry")
		r.wire.set(nil)
		p.submit()
		p.await("ready")
	})
}

// TestUnknownReasons refuses cards for reasons that only a later vault would give.
func TestUnknownReasons(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{})
	p.enterCard(visa)
	for body, what := range map[string][2]string{
		`{"status":"failed"}`: {"session_expired", "new_session"},
		`{"status":"failed","data":{"reason_code":"stolen_card"}}`:                               {"session_expired", "new_session"},
		`{"status":"failed","data":{"reason_code":"stolen_card"},"next_action":"tokenize_card"}`: {"incomplete", "correct"},
	} {
		r.wire.set(only("POST", say(200, body)))
		p.submit()
		d := p.wantFailure(what[0], what[1])
		p.frame.wait(`document.querySelector("#status.error")?.textContent === %s`, d.Message)
		p.renew()
	}
}

// TestMovedWithCard moves the component after success, and while the vault has the card.
func TestMovedWithCard(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]tamper{"after success": nil, "while it is sent": only("POST", made(hold(nil)))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			p := r.ready(visit{})
			p.allow(`net::ERR_ABORTED`)
			p.enterCard(visa)
			r.wire.set(answer)
			p.do(`void (globalThis.promise = card.submit().then((d) => d.token_id, (e) => e.reason_code))`)
			if answer == nil {
				p.await("success")
			} else {
				r.wire.await(t, 1, "POST", complete)
				for r.tokens() == 0 {
					p.do(`new Promise((done) => setTimeout(done))`)
				}
			}
			p.do(`document.querySelector("main").append(card)`)
			p.enter()
			p.frame.wait(`document.querySelector("#status").textContent.includes("received")`)
			p.do(`promise`)
			p.frame.do(`new Promise((done) => setTimeout(done))`)
			p.do(`new Promise((done) => setTimeout(done))`)
			if p.count("success") != 1 || p.count("error") != 0 {
				t.Errorf("%d successes, %d errors", p.count("success"), p.count("error"))
			}
			p.wantToken(p.last("success"), "411111******0005")
			want(&p.world, p.last("success").TokenID, `promise`)
		})
	}
}

// TestOutside submits outside a document.
func TestOutside(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{})
	want(&p.world, "unavailable", `Promise.race([
		document.createElement("card-entry").submit().then(() => "a token", (e) => e.reason_code),
		new Promise((done) => setTimeout(done, 2000, "nothing")),
	])`)
	// A bad address is reported, even to a listener added after the element was inserted.
	want(&p.world, "unavailable", `new Promise((done) => {
		const other = document.createElement("card-entry");
		other.setAttribute("base-url", "ftp://vault.example/");
		document.body.append(other);
		other.addEventListener("error", ({detail}) => done(detail.reason_code));
		setTimeout(done, 2000, "nothing");
	})`)
}

// press presses a key a number of times, like a keyboard whose key is held.
func (p *tab) press(key string, code int64, times int) {
	p.t.Helper()
	for i := range times {
		call(&p.world, input.DispatchKeyEvent, input.DispatchKeyEventParams{
			Type: input.DispatchKeyEventTypeKeyDown, Key: key, Code: key, Text: "\r", WindowsVirtualKeyCode: code, AutoRepeat: new(i > 0),
		})
	}
	call(&p.world, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyUp, Key: key, Code: key, WindowsVirtualKeyCode: code})
}

// TestEnter presses Enter in a field: the shop's form is submitted as from a field of its
// own.
func TestEnter(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{})
	p.do(`(() => {
		globalThis.submits = [];
		document.querySelector("#pay").addEventListener("submit", (e) => submits.push(e.submitter?.id));
	})()`)
	p.focus("number")
	p.press("Enter", 13, 4)
	p.wantFailure("incomplete", "correct")
	p.enterCard(visa)
	p.wait(`events.at(-1).detail.complete`)
	want(&p.world, "after", `submits.join()`)

	p.do(`document.querySelector("#after").disabled = true`)
	p.press("Enter", 13, 1)
	p.keys(kb.Backspace)
	p.wait(`!events.at(-1).detail.complete`)
	want(&p.world, "after", `submits.join()`)

	p.do(`document.querySelector("#after").disabled = false`)
	p.keys("7")
	release := make(chan struct{})
	r.wire.set(only("POST", hold(release)))
	p.press("Enter", 13, 1)
	r.wire.await(t, 1, "POST", complete)
	p.press("Enter", 13, 1)
	close(release)
	p.wantToken(p.await("success"), "411111******0005")
	want(&p.world, "after,after", `submits.join()`)
}

// TestTold checks the messages to the shopper, and how long they stay.
func TestTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{})
	p.refuses(404)
	status := `document.querySelector("#status").textContent`
	// The same error a second time is announced again.
	p.fill("number", "4111\t")
	p.frame.wait(status + `.includes("incomplete")`)
	p.fill("number", "4")
	p.frame.wait(status + ` === ""`)
	p.keys("1\t")
	p.frame.wait(status + `.includes("incomplete")`)

	p.enterCard(visa)
	release := make(chan struct{})
	r.wire.set(only("POST", hold(release)))
	p.submit()
	r.wire.await(t, 1, "POST", complete)
	p.frame.wait(status + `.startsWith("Sending")`)
	p.wantFit("sending")
	p.screenshot("sending")
	r.wire.set(only("POST", say(404, `{}`)))
	p.do(`card.sessionId = %s`, r.newSession())
	p.wantFailure("session_replaced", "correct")
	p.await("ready")
	p.submit()
	// A new session keeps the message until the shopper acts.
	d := p.wantFailure("session_expired", "new_session")
	p.renew()
	want(p.frame, d.Message, status)
	want(p.frame, "error", `document.querySelector("#status").className`)
	p.fill("code", "1")
	p.frame.wait(status + ` === ""`)
	close(release)
}

// TestResetForm resets the shop's form after success: it has no token then.
func TestResetForm(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{attributes: `name="token"`})
	p.enterCard(visa)
	p.submit()
	p.await("success")
	p.do(`card.form.reset()`)
	want(&p.world, false, `new FormData(card.form).has("token")`)
	p.do(`(card.setAttribute("locale", "de"), 0)`)
	p.frame.wait(`document.documentElement.lang === "de"`)
	want(p.frame, true, `document.querySelector("#status").textContent.includes("angekommen") && document.querySelector("#number").disabled`)
}

// TestChanges reports changes that the shopper did not make.
func TestChanges(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{})
	p.enterCard(visa)
	p.wait(`events.at(-1).detail.complete`)
	p.do(`card.setAttribute("cardholder-name", "required")`)
	p.wait(`events.at(-1).detail.errors?.name === "required" && !events.at(-1).detail.complete`)
	p.do(`card.setAttribute("cardholder-name", "off")`)
	p.wait(`events.at(-1).detail.complete`)
	p.do(`customElements.get("card-entry").addTexts("en", {number: "Number"})`)
	p.frame.wait(`document.querySelector("#number-label").textContent === "Number"`)
	p.submit()
	p.await("success")
	want(&p.world, false, `events.findLast((e) => e.type === "change").detail.complete`)
}

// TestWayBack leaves the page, which the browser keeps for going back.
func TestWayBack(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{})
	p.enterCard(visa)
	p.wait(`events.at(-1).detail.complete`)
	p.frame.do(`dispatchEvent(new PageTransitionEvent("pagehide", {persisted: true}))`)
	want(p.frame, "", `[...document.querySelectorAll("input")].map((e) => e.value).join("")`)
	p.wait(`!events.at(-1).detail.complete`)
}

// TestUnknownSession cannot read a session that asks for the code alone, and does not ask
// for a card meanwhile.
func TestUnknownSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	token, err := r.vault.Tokenize(t.Context(), cardvault.NewSessionID(uuid.MustParse(r.newSession())), cardvault.Card{
		PAN: card.NewPAN([]byte(visa.number)), Expiry: card.Expiry{Month: 12, Year: 2030},
	})
	if err != nil {
		t.Fatal(err)
	}
	session, err := r.vault.RefreshSession(t.Context(), token.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.wire.set(only("GET", cut))
	p := r.open(visit{session: session.ID.UUID().String()})
	p.allow(`network error|Fetch failed`)
	d := p.wantFailure("network_error", "retry")
	p.enter()
	seen := `[...document.querySelectorAll("input, #status")].filter((e) => e.checkVisibility()).map((e) => e.id).join()`
	want(p.frame, "status", seen)
	want(p.frame, d.Message, `document.querySelector("#status").textContent`)
	p.wantFit("unread")
	p.screenshot("unread")
	r.wire.set(nil)
	p.submit()
	p.await("ready")
	want(p.frame, "code,status", seen)
}

// TestClock has a shopper whose clock is ten years ahead. The vault's clock counts.
func TestClock(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{before: `{ const now = Date.now; Date.now = () => now() + 3.2e11; }`})
	p.enterCard(visa)
	p.submit()
	p.wantToken(p.await("success"), "411111******0005")
}

// TestPlainAutofill fills the form like browsers whose events do not mention autofill.
func TestPlainAutofill(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{})
	for _, expiry := range []string{"12/2030", "12/30", "2030-12", "1230", "122030"} {
		p.frame.do(`(() => { for (const [id, value] of Object.entries(%s)) {
			const e = document.getElementById(id);
			e.value = value;
			e.dispatchEvent(new Event("input", {bubbles: true}));
		}})()`, map[string]string{"number": visa.number, "expiry": expiry, "code": visa.code})
		p.wait(`events.at(-1).detail.complete`)
		if got := p.value("number") + " " + p.value("expiry"); got != "4111 1100 0000 0005 12/30" {
			t.Errorf("with expiry %s: %s", expiry, got)
		}
		p.do(`card.reset()`)
		p.wait(`!events.at(-1).detail.complete`)
	}
}

// TestOptions chooses twice on the page of examples/server. The later choice wins, not the
// later answer. No choice is possible while a card is under way.
func TestOptions(t *testing.T) {
	t.Parallel()
	browser(t) // without one there is nothing to build for
	s := &sandbox{t: t, program: filepath.Join(t.TempDir(), "server.exe"), data: filepath.Join(t.TempDir(), "data")}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", s.program, "./examples/server")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.start("127.0.0.1:0")
	p := s.open(1280)
	p.do(`(() => {
		const real = fetch;
		globalThis.holding = [];
		globalThis.fetch = async (...args) => {
			const turn = args[0].endsWith("/tokens/session") && new Promise((done) => holding.push(done));
			const answer = await real(...args);
			await turn;
			return answer;
		};
	})()`)
	p.click("#session-options summary")
	p.click("#bypass")
	p.click("#bypass")
	p.wait(`holding.length === 2`)
	p.do(`holding[1]()`)
	p.await("ready")
	session := eval[string](&p.world, `card.sessionId`)
	p.do(`holding[0]()`)
	p.wait(`document.querySelectorAll("#call-list > li").length === 3`)
	p.do(`new Promise((done) => setTimeout(done))`)
	want(&p.world, session, `card.sessionId`)

	want(&p.world, true, `(document.querySelector("#store").click(), document.querySelector("#bypass").disabled && document.querySelector("#lifetime").disabled)`)
	p.wantFailure("incomplete", "correct")
	p.wait(`!document.querySelector("#bypass").disabled && !document.querySelector("#lifetime").disabled`)
}

// TestChallengeEnd notifies a shop that shows the bank's page itself when to remove it.
func TestChallengeEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{hurry: []int{1000, 2000}})
	p.do(`(() => {
		card.addEventListener("challenge", (e) => e.preventDefault());
		card.addEventListener("challengeend", ({type, detail}) => events.push({type, detail}));
	})()`)
	b := new(bank)
	url := strings.Replace(r.abroad.origin, "localhost", "[::1]", 1) + "/bank"
	b.say(strings.Replace(challenge, "%", url, 1))
	p.enterCard(visa)
	r.wire.set(b.tamper)
	p.submit()
	p.await("challenge")
	b.state.Store(nil)
	if d := p.await("challengeend"); d.URL != url {
		t.Errorf("the end of %s", d.URL)
	}
	p.await("success")
	if n := p.count("challengeend"); n != 1 {
		t.Errorf("%d ends", n)
	}
}
