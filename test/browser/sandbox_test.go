package browser_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/storage"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestSandbox uses the page of examples/server. Each subtest has a server of its own.
func TestSandbox(t *testing.T) {
	t.Parallel()
	browser(t) // without one there is nothing to build for
	program := filepath.Join(t.TempDir(), "server.exe")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./examples/server")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, test := range map[string]func(*sandbox){
		"entered":      (*sandbox).testEntered,
		"copied":       (*sandbox).testCopied,
		"wrong card":   (*sandbox).testWrongCard,
		"confirmed":    (*sandbox).testConfirmed,
		"refused":      (*sandbox).testRefused,
		"payment data": (*sandbox).testPaymentData,
		"scheme":       (*sandbox).testScheme,
		"code":         (*sandbox).testCode,
		"replaced":     (*sandbox).testReplaced,
		"deleted":      (*sandbox).testDeleted,
		"pages":        (*sandbox).testPages,
		"restarted":    (*sandbox).testRestarted,
		"foreign host": (*sandbox).testForeignHost,
		"other origin": (*sandbox).testOtherOrigin,
		"secrets":      (*sandbox).testSecrets,
		"webhooks":     (*sandbox).testWebhooks,
		"reference":    (*sandbox).testReference,
		"looks":        (*sandbox).testLooks,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &sandbox{t: t, program: program, data: filepath.Join(t.TempDir(), "data")}
			s.start(realtest.Address(t))
			test(s)
		})
	}
}

// A sandbox is a process of examples/server.
type sandbox struct {
	t             testing.TB
	program, data string
	process       *exec.Cmd
	said          bytes.Buffer // standard error of the last process

	// From sandbox.json.
	Base     string `json:"base_url"`
	Accounts []struct {
		APIKey        string `json:"api_key"`
		PaymentSecret string `json:"payment_secret"`
	} `json:"accounts"`
}

// start starts the process and waits until it answers.
func (s *sandbox) start(addr string) {
	s.t.Helper()
	s.said.Reset()
	// A card that its scheme has replaced stays so: no account updater comes meanwhile.
	s.process = exec.Command(s.program, "-addr", addr, "-data", s.data, "-updater-period", "0")
	s.process.Stderr = &s.said
	stdout, err := s.process.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		s.kill()
		if s.t.Failed() {
			s.t.Logf("the server says:\n%s", &s.said)
		}
	})
	if !bufio.NewScanner(stdout).Scan() {
		s.kill()
		s.t.Fatalf("the server ended before it was ready: %s", &s.said)
	}
	go io.Copy(io.Discard, stdout)
	b, err := os.ReadFile(filepath.Join(s.data, "sandbox.json"))
	if err == nil {
		err = json.Unmarshal(b, s)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// kill ends the process as a crash would.
func (s *sandbox) kill() {
	if s.process.ProcessState != nil {
		return
	}
	_ = s.process.Process.Kill() // it may have ended
	_ = s.process.Wait()         // killed
}

// call calls the REST API with an API key.
func (s *sandbox) call(method, path, body string) []byte {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.Base+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", s.Accounts[0].APIKey)
	r.Header.Set("Content-Type", "application/json")
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil || w.StatusCode >= 300 {
		s.t.Fatalf("%s %s answers %s %s %v", method, path, w.Status, b, err)
	}
	return b
}

// number returns the VISA test card of a scenario.
func number(scenario int) (number string) {
	simnet.ScenarioPAN(card.VISA, scenario).Expose(func(digits []byte) { number = string(digits) })
	return number
}

// stored stores the test card of a scenario, with a security code, and returns the id of its token.
func (s *sandbox) stored(scenario int) string {
	s.t.Helper()
	var token struct {
		ID string `json:"id"`
	}
	b := s.call("POST", "/cde-import", fmt.Sprintf(`{"account_number":%q,"expiry_month":12,"expiry_year":2030,"security_code":"737"}`, number(scenario)))
	if err := json.Unmarshal(b, &token); err != nil {
		s.t.Fatal(err)
	}
	return token.ID
}

// overhear records the events of every card-entry on the page. card is the element that was
// ready last.
const overhear = `{
	globalThis.events = [];
	globalThis.card = null;
	for (const type of ["ready", "change", "success", "error", "challenge"]) {
		addEventListener(type, ({target, detail}) => {
			if (target.localName !== "card-entry") return;
			if (type === "ready") card = target;
			events.push({type, detail});
		}, true);
	}
}`

// toRead is for how many milliseconds the page shows a toast.
const toRead = 2500

// tab opens an empty tab with a width. Polling runs ten times as fast in it.
func (s *sandbox) tab(width int64) *tab {
	s.t.Helper()
	parent := browser(s.t)
	place(s.t)
	ctx, cancel := context.WithTimeout(parent, testTime)
	s.t.Cleanup(cancel)
	ctx, closeTab := chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
	s.t.Cleanup(closeTab)
	p := &tab{world: world{t: s.t, ctx: ctx}, frames: make(chan frameRef, 16)}
	if err := chromedp.Do(ctx); err != nil {
		s.t.Fatal(err)
	}
	p.observe(ctx)
	p.size(width, 1)
	call(&p.world, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: overhear + openRoots + p.script(hurry, []any{[]int{1000, 2000}, []int{toLoad, toRead}})})
	s.t.Cleanup(p.check)
	return p
}

// navigate goes to a URL and waits until it is loaded.
func (p *tab) navigate(url string) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, chromedp.Navigate(url)); err != nil {
		p.t.Fatal(err)
	}
}

// open opens the page in a window with a width, and waits until a card can be entered.
func (s *sandbox) open(width int64) *tab {
	s.t.Helper()
	p := s.tab(width)
	p.navigate(s.Base + "/")
	p.await("ready")
	p.enter()
	return p
}

type point struct{ X, Y float64 }

// middle scrolls to an element of the page and returns its middle, once the element is at
// rest and uncovered.
func (p *tab) middle(selector string) point {
	p.t.Helper()
	at := eval[*point](&p.world, `new Promise((done) => {
		const end = performance.now() + %s;
		let last;
		(function look() {
			const e = document.querySelector(%s);
			e?.scrollIntoView({block: "center", behavior: "instant"});
			const r = e?.getBoundingClientRect();
			const at = e && {X: r.x + r.width / 2, Y: r.y + r.height / 2};
			if (e && at.X === last?.X && at.Y === last?.Y && e.contains(document.elementFromPoint(at.X, at.Y))) return done(at);
			last = at;
			if (performance.now() > end) done(null);
			else setTimeout(look, 50);
		})();
	})`, patience.Milliseconds(), selector)
	if at == nil {
		p.t.Fatalf("%s is not visible", selector)
	}
	return *at
}

// click clicks on an element of the page. If the element has moved away under the mouse, it
// clicks again: no other element receives the missed click.
func (p *tab) click(selector string, args ...any) {
	p.t.Helper()
	selector = fmt.Sprintf(selector, args...)
	for missed := true; missed; {
		at := p.middle(selector)
		p.do(`(() => {
			const e = document.querySelector(%s);
			window.missed = false;
			window.clicks?.abort();
			window.clicks = new AbortController();
			addEventListener("click", (click) => {
				if (e?.contains(click.target)) return;
				window.missed = true;
				click.preventDefault();
				click.stopImmediatePropagation();
			}, {capture: true, once: true, signal: window.clicks.signal});
		})()`, selector)
		if err := chromedp.Do(p.ctx, chromedp.MouseClickXY(at.X, at.Y)); err != nil {
			p.t.Fatal(err)
		}
		missed = eval[bool](&p.world, `window.missed === true`)
	}
}

// leave clicks on an element that loads a page, and waits until that is there. It is done
// without the mouse: an answer to it would meet the page that ends.
func (p *tab) leave(selector string) {
	p.t.Helper()
	p.middle(selector)
	click := p.script(`void setTimeout(() => document.querySelector(%s).click())`, []any{selector})
	during(p, page.LoadEventFired, nil, chromedp.Evaluate[chromedp.Void](click, func(p *runtime.EvaluateParams) { p.UserGesture = new(true) }))
}

// during runs a function and waits for an event that results from it.
func during[E, T any](p *tab, event cdp.Event[E], match func(E) bool, trigger chromedp.Action[T]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if _, err := chromedp.Run(ctx, chromedp.WaitEvent(event, match, trigger)); err != nil {
		p.t.Fatalf("%s: %v", event.Method, err)
	}
}

// text waits until an element of the page contains a text.
func (p *tab) text(selector, text string) {
	p.t.Helper()
	p.wait(`[document.querySelector(%s)].some((e) => e?.checkVisibility() && e.innerText.includes(%s))`, selector, text)
}

// pills waits until a token shows these states.
func (p *tab) pills(token, pills string) {
	p.t.Helper()
	shown := `[...document.querySelectorAll("#token-" + %s + " .pills .pill")].map((e) => e.textContent).join()`
	defer func() {
		if p.t.Failed() {
			p.t.Logf("the token shows %q", eval[string](&p.world, shown, token))
		}
	}()
	p.wait(shown+" === %s", token, pills)
}

// unfold opens a token of the list.
func (p *tab) unfold(token string) {
	p.t.Helper()
	p.click("#token-%s summary", token)
	p.wait(`document.querySelector("#token-" + %s + " .body")`, token)
}

// ready waits until a button of a token is enabled: until then it does nothing.
func (p *tab) ready(token, action string) {
	p.t.Helper()
	p.wait(`document.querySelector("#token-" + %s + " [data-action=" + %s + "]")?.ariaDisabled === null`, token, action)
}

// act presses a button of a token, once it is enabled.
func (p *tab) act(token, action string) {
	p.t.Helper()
	p.ready(token, action)
	p.click("#token-%s [data-action=%s]", token, action)
}

// enterScenario types the test card of a scenario and stores it.
func (p *tab) enterScenario(scenario int) {
	p.t.Helper()
	p.enterCard(entered{number(scenario), "1230", "737"})
	p.click("#store")
}

// testEntered types a card, and sees its token become active without further action.
func (s *sandbox) testEntered() {
	p := s.open(1280)
	p.wait(`document.querySelector("#no-tokens").checkVisibility()`)
	p.do(`(() => {
		globalThis.states = [];
		const list = document.querySelector("#token-list");
		new MutationObserver(() => {
			const state = list.querySelector(".pill")?.textContent;
			if (state && state !== states.at(-1)) states.push(state);
		}).observe(list, {subtree: true, childList: true});
	})()`)
	p.enterScenario(1)
	id := p.await("success").TokenID
	p.text("#entry-status", "Card stored.")
	p.pills(id, "active,code available")
	// The scheme takes two seconds, in which a browser on a busy machine may not look.
	states := eval[string](&p.world, `states.join()`)
	if states != "pending,active" && states != "active" {
		s.t.Errorf("the token was shown as %s", states)
	}
	p.text("#token-"+id, "411111******0013")
	p.text("#event-list", "token.created")
	p.text("#event-list", "token.updated")
	if states != "active" {
		want(&p.world, "The network token of 411111******0013 is active.", `document.querySelector("#announcement").textContent`)
	}
	want(&p.world, "1", `document.querySelector("#token-count").textContent`)
	// The next card can be entered.
	p.await("ready")
	p.enterScenario(0)
	p.pills(p.await("success").TokenID, "active,code available")
	want(&p.world, 2, `document.querySelectorAll("#token-list > li").length`)
}

// testCopied brings the number of a test card into the field by the clipboard.
func (s *sandbox) testCopied() {
	p := s.open(1280)
	clipboard.Lock()
	defer clipboard.Unlock()
	p.click("#test-cards [data-copy='%s']", number(0))
	p.text("#toast", "Copied")
	p.focus("number")
	p.edit("v", "paste")
	p.frame.wait(`document.querySelector("#number").value !== ""`)
	if got := p.value("number"); strings.ReplaceAll(got, " ", "") != number(0) {
		s.t.Errorf("pasted: %s", got)
	}
	p.wait(`document.querySelector("#toast").textContent === ""`)
}

// testWrongCard sees the error at the field of a wrong number, and stores nothing.
func (s *sandbox) testWrongCard() {
	p := s.open(360)
	// Without the list of test cards, stored tokens are closer.
	want(&p.world, 0, `document.querySelectorAll("#test-cards details[open]").length`)
	want(&p.world, true, `document.documentElement.scrollWidth <= innerWidth`)
	p.enterCard(entered{"4111110000000006", "1230", "737"})
	p.click("#store")
	p.wantFailure("incomplete", "correct")
	p.wantError("number", "invalid")
	want(&p.world, "", `document.querySelector("#entry-status").textContent`)
	want(&p.world, 0, `document.querySelectorAll("#token-list > li").length`)
	// A new session keeps the typed text.
	p.click("#session-options summary")
	p.do(`document.querySelector("#lifetime").focus()`)
	p.keys(kb.ArrowDown)
	p.await("ready")
	p.fill("number", number(0))
	p.keys(kb.Enter)
	id := p.await("success").TokenID
	p.pills(id, "not available,code available")
	p.unfold(id)
	p.text("#token-"+id+" .facts", "Expires")
}

// bankPage is the document of a challenge, which is on the page's own origin here.
const bankPage = `roots.map((r) => r.querySelector(".challenge")?.contentDocument).find(Boolean)`

// challenged enters the card that must be confirmed, and waits for the bank's page.
func (p *tab) challenged() {
	p.t.Helper()
	// This pair would let any other frame leave its sandbox. This frame is the bank's.
	p.allow(`both allow-scripts and allow-same-origin for its sandbox`)
	// The bank's last page goes as soon as the vault knows the answer, loaded or not.
	p.allow(`challenge\.css.*net::ERR_ABORTED|(Document|Stylesheet) failed: net::ERR_ABORTED`)
	p.enterScenario(70)
	url := p.await("challenge").URL
	p.wait(bankPage+`?.URL === %s && `+bankPage+`.readyState === "complete"`, url)
}

// testConfirmed confirms to the bank.
func (s *sandbox) testConfirmed() {
	p := s.open(1280)
	p.challenged()
	// It has the focus.
	p.keys(kb.Tab)
	p.wait(bankPage + `.activeElement.id === "confirm"`)
	p.wantFit("challenge")
	p.picture("challenge")
	p.keys(kb.Enter)
	id := p.await("success").TokenID
	p.pills(id, "active,code available")
	p.text("#entry-status", "Card stored.")
}

// testRefused refuses at the bank. Then it skips the identification, which the card's
// issuer insists on.
func (s *sandbox) testRefused() {
	p := s.open(1280)
	p.challenged()
	p.keys(kb.Tab + kb.Tab)
	p.wait(bankPage + `.activeElement.id === "refuse"`)
	p.keys(kb.Enter)
	p.wantFailure("identification_failed", "new_session")
	p.text("#entry-status", "Your card could not be verified.")
	want(&p.world, 0, `document.querySelectorAll("#token-list > li").length`)

	p.await("ready")
	p.click("#session-options summary")
	p.click("#bypass")
	p.wait(`document.querySelectorAll("#call-list > li").length === 3`)
	p.await("ready")
	p.enterScenario(70)
	id := p.await("success").TokenID
	p.pills(id, "failed,code available")
	p.unfold(id)
	p.text("#token-"+id+" .facts", "card_verification_failed")
}

// testPaymentData requests cryptograms and sees what merchants see.
func (s *sandbox) testPaymentData() {
	id, declined := s.stored(0), s.stored(40)
	p := s.open(1280)
	p.pills(id, "active,code available")
	p.unfold(id)
	p.act(id, "payment-data")
	p.text("#token-"+id, "Cryptogram created.")
	var list struct {
		Data []struct {
			ID  string
			JWE string `json:"encrypted_authentication_data"`
		}
	}
	if err := json.Unmarshal(s.call("GET", "/tokens/"+id+"/payment-data", ""), &list); err != nil || len(list.Data) != 1 {
		s.t.Fatalf("%d records, %v", len(list.Data), err)
	}
	c, err := receive.OpenPaymentData(list.Data[0].JWE, receive.NewSharedSecret([]byte(s.Accounts[0].PaymentSecret)))
	if err != nil {
		s.t.Fatal(err)
	}
	record := "#payment-data-" + list.Data[0].ID
	c.Cryptogram.Expose(func(text []byte) { p.text(record, string(text)) })
	c.Number.Expose(func(digits []byte) {
		want(&p.world, string(digits), `document.querySelector(%s + " [data-copy]").textContent.replaceAll(" ", "")`, record)
	})
	p.text(record, "€19.99")
	p.text(record, fmt.Sprintf("%02d/%d", c.Expiry.Month, c.Expiry.Year))

	// Invalid input is reported, and so is a declined request.
	p.ready(id, "payment-data")
	p.click("#token-%s [name=amount]", id)
	p.edit("a", "selectAll")
	p.refuses(422)
	p.keys("19.99" + kb.Enter)
	p.text("#token-"+id+" .status.bad", "amount")
	p.pills(declined, "active,code available")
	p.unfold(declined)
	p.act(declined, "payment-data")
	p.text("#token-"+declined, "No payment data")
	p.wait(`document.querySelector("#token-" + %s + " .records code")`, declined)
}

// testScheme acts as the scheme, and sees the effects.
func (s *sandbox) testScheme() {
	id := s.stored(0)
	p := s.open(1280)
	p.pills(id, "active,code available")
	p.unfold(id)
	p.act(id, "suspend")
	p.pills(id, "inactive,code available")
	p.text("#token-"+id+" .facts", "suspended")
	p.act(id, "resume")
	p.pills(id, "active,code available")
	p.act(id, "renew")
	p.text("#event-list", "card updated")
	p.act(id, "report-no_match")
	p.text("#token-"+id, "The account updater reports it")
	p.act(id, "delete")
	p.pills(id, "deleted,code available")
	// That is final.
	p.refuses(409)
	p.act(id, "provisions")
	p.text("#token-"+id+" .status.bad", "does not allow this")

	id = s.stored(0)
	p.pills(id, "active,code available")
	p.unfold(id)
	p.act(id, "invalidate")
	p.pills(id, "invalid,deleted,code available")
	p.text("#token-"+id+" .facts", "account_closed")
}

// testCode enters the security code of a token again, and consumes it.
func (s *sandbox) testCode() {
	id := s.stored(0)
	p := s.open(1280)
	p.pills(id, "active,code available")
	p.unfold(id)
	p.act(id, "consume")
	p.pills(id, "active")
	p.act(id, "refresh-session")
	if d := p.await("ready"); d.Action != "refresh_security_code" || d.MaskedAccountNumber != "411111******0005" {
		s.t.Errorf("ready: %+v", d)
	}
	want(&p.world, "refresh-session-"+id, `card.id`)
	p.enter()
	p.world.axe("code")
	p.axe("code")
	p.fill("code", "12")
	p.keys(kb.Enter)
	p.wantFailure("incomplete", "correct")
	p.fill("code", "123")
	p.screenshot("code")
	p.click("#token-%s .entry-form .main", id)
	p.await("success")
	p.pills(id, "active,code available")
	p.text("#token-"+id, "Security code saved.")
	want(&p.world, "refresh-session", `document.activeElement.dataset.action`)
	if b := s.call("GET", "/tokens/"+id+"/security-code", ""); !bytes.Contains(b, []byte("true")) {
		s.t.Errorf("the vault answers %s", b)
	}
}

// testReplaced sees the scheme replace the number of a card, enters the new card for the same
// token, and pays with it.
func (s *sandbox) testReplaced() {
	id := s.stored(34)
	p := s.open(1280)
	p.pills(id, "replaced by scheme,active,code available")
	p.text("#token-"+id, "The scheme has replaced the card number.")
	p.unfold(id)
	p.text("#token-"+id+" .facts", "the vault has the old one")

	p.act(id, "replace-session")
	if d := p.await("ready"); d.Action != "replace_card" || d.MaskedAccountNumber != "411111******4242" {
		s.t.Errorf("ready: %+v", d)
	}
	want(&p.world, "replace-session-"+id, `card.id`)
	p.enter()
	want(p.frame, "name,number,expiry,code", `[...document.querySelectorAll("input")].filter((e) => e.checkVisibility()).map((e) => e.id).join()`)
	p.world.axe("replaced")
	p.axe("replaced")
	p.picture("replaced")
	p.enterCard(entered{number(0), "1234", "737"})
	p.click("#token-%s .entry-form .main", id)
	if d := p.await("success"); d.TokenID != id {
		s.t.Errorf("the card has the token %s, not %s", d.TokenID, id)
	}
	p.text("#token-"+id, "Card replaced.")
	want(&p.world, "replace-session", `document.activeElement.dataset.action`)
	p.pills(id, "active,code available")
	p.text("#token-"+id, "411111******0005")
	p.text("#event-list", "card replaced")
	want(&p.world, "1", `document.querySelector("#token-count").textContent`)

	p.act(id, "payment-data")
	p.text("#token-"+id, "Cryptogram created.")
	p.click("#token-%s [name=initiator]", id)
	p.act(id, "payment-data")
	p.text("#token-"+id, "Payment data created.")
	p.wait(`[...document.querySelectorAll("#token-" + %s + " .records .facts dd")].some((e) => e.textContent === "none")`, id)
}

// testDeleted deletes a token, after a confirmation.
func (s *sandbox) testDeleted() {
	id := s.stored(0)
	p := s.open(1280)
	p.pills(id, "active,code available")
	p.unfold(id)
	for _, no := range []func(){
		func() { p.click("#delete-no") },
		func() { p.keys(kb.Escape) },
	} {
		p.act(id, "delete-token")
		p.wait(`document.querySelector("#delete-dialog").open`)
		p.text("#delete-dialog", "411111******0005")
		want(&p.world, "delete-no", `document.activeElement.id`)
		no()
		p.text("#token-"+id, "Nothing was deleted.")
		want(&p.world, "delete-token", `document.activeElement.dataset.action`)
		s.call("GET", "/tokens/"+id, "")
	}
	p.act(id, "delete-token")
	p.click("#delete-yes")
	p.wait(`!document.querySelector("#token-list > li")`)
	p.text("#toast", "Token deleted.")
	p.text("#event-list", "token.deleted")
	want(&p.world, true, `document.querySelector("#no-tokens").checkVisibility()`)
	want(&p.world, "tokens-title", `document.activeElement.id`)
}

// testPages turns the pages of a long list.
func (s *sandbox) testPages() {
	var ids []string
	for range 11 {
		ids = append(ids, s.stored(0))
	}
	p := s.open(1280)
	p.pills(ids[10], "active,code available")
	want(&p.world, true, `document.querySelector("#newer").disabled && document.querySelectorAll("#token-list > li").length === 10`)
	p.click("#older")
	p.pills(ids[0], "active,code available")
	want(&p.world, true, `document.querySelector("#older").disabled && document.querySelectorAll("#token-list > li").length === 1`)
	p.click("#newer")
	p.pills(ids[10], "active,code available")
	p.click("#older")
	p.pills(ids[0], "active,code available")
	// Without it there is only one page.
	s.call("DELETE", "/tokens/"+ids[0], "")
	p.pills(ids[1], "active,code available")
	p.wait(`!document.querySelector("#token-pages").checkVisibility()`)
	p.unfold(ids[1])
	p.act(ids[1], "read")
	p.text("#call-list", ids[1])
}

// testRestarted kills the server, and restarts it.
func (s *sandbox) testRestarted() {
	id := s.stored(0)
	p := s.open(1280)
	p.allow(`ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_SOCKET_NOT_CONNECTED|status of 401`)
	p.pills(id, "active,code available")
	want(&p.world, false, `document.querySelector("#trouble").checkVisibility()`)
	s.kill()
	p.text("#trouble", "The sandbox is not responding.")
	p.screenshot("killed")
	s.start(strings.TrimPrefix(s.Base, "http://"))
	p.text("#trouble", "This page has expired, or the sandbox was restarted. Reload the page.")
	p.screenshot("restarted")
	p.leave("#reload")
	p.enter()
	p.read = 0
	p.await("ready")
	p.pills(id, "active") // security codes end with the process
	want(&p.world, false, `document.querySelector("#trouble").checkVisibility()`)
	p.enterScenario(0)
	p.pills(p.await("success").TokenID, "active,code available")
}

// testForeignHost reaches the server by a foreign name, as after DNS rebinding.
func (s *sandbox) testForeignHost() {
	p := s.tab(1280)
	p.allow(`status of 421|favicon`)
	_, port, _ := strings.Cut(strings.TrimPrefix(s.Base, "http://"), ":")
	for _, path := range []string{"/", "/sandbox/page.js", "/sandbox/live", "/simulator/identifications/challenge.css"} {
		p.navigate("http://rebound.localhost:" + port + path)
		want(&p.world, 421, `performance.getEntriesByType("navigation")[0].responseStatus`)
		want(&p.world, "MISDIRECTED_REQUEST", `JSON.parse(document.body.innerText).classifier`)
	}
	if n := len(call(&p.world, storage.GetCookies, storage.GetCookiesParams{}).Cookies); n != 0 {
		s.t.Errorf("%d cookies", n)
	}
	p.navigate(strings.Replace(s.Base, "127.0.0.1", "localhost", 1) + "/")
	p.await("ready")
}

// testOtherOrigin has pages on other ports make the page's calls, in a browser that has the
// page's cookie.
func (s *sandbox) testOtherOrigin() {
	id := s.stored(0)
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, `<!doctype html><html lang="en"><title>Stranger</title><link rel="icon" href="data:,">`) // the browser has gone away
	}))
	s.t.Cleanup(stranger.Close)
	p := s.open(1280)
	p.pills(id, "active,code available")
	const calls = `Promise.all(%s.flatMap(([method, path, body]) => ["cors", "no-cors"].map((mode) =>
		fetch(%s + path, {method, mode, credentials: "include", body: body || undefined}).then((r) => method + " " + path + " " + r.status, () => ""))))
		.then((answers) => answers.filter(Boolean))`
	reads := [][3]string{
		{"GET", "/sandbox/live"}, {"GET", "/sandbox/api/tokens"}, {"GET", "/sandbox/api/tokens/" + id},
		{"GET", "/sandbox/page.js"}, {"GET", "/sandbox/icon.svg"},
	}
	// The calls refused elsewhere work here.
	own := eval[[]string](&p.world, calls, reads, "")
	if len(own) != 2*len(reads) || slices.ContainsFunc(own, func(s string) bool { return !strings.HasSuffix(s, " 200") }) {
		s.t.Errorf("the page itself may %q", own)
	}
	// ERR_ABORTED comes from a frame that is still loading when the form leaves the page.
	p.allow(`CORS|CorsIssue|ERR_FAILED|ERR_BLOCKED|ERR_ABORTED|NotSameOrigin|frame-ancestors|status of 403|favicon`)
	for _, origin := range []string{stranger.URL, strings.Replace(stranger.URL, "127.0.0.1", "localhost", 1)} {
		p.navigate(origin + "/")
		answers := eval[[]string](&p.world, calls, slices.Concat(reads, [][3]string{
			{"POST", "/sandbox/api/tokens/session", "{}"},
			{"POST", "/sandbox/open", `{"encrypted_authentication_data":"x"}`},
			{"POST", "/sandbox/api/tokens/" + id + "/consume", ""},
			{"POST", "/sandbox/api/tokens/" + id + "/payment-data", `{"amount":1,"currency_code":"EUR","reference":"x"}`},
			{"POST", "/sandbox/api/simulator/tokens/" + id + "/suspend", ""},
			{"DELETE", "/sandbox/api/tokens/" + id, ""},
		}), s.Base)
		if len(answers) != 0 {
			s.t.Errorf("%s may %q", origin, answers)
		}
		want(&p.world, "error", `new Promise((done) => {
			const e = new Image();
			e.onload = e.onerror = ({type}) => done(type);
			e.src = %s;
		})`, s.Base+"/sandbox/icon.svg")
		frame := p.script(`document.body.append(Object.assign(document.createElement("iframe"), {src: %s}))`, []any{s.Base + "/"})
		blocked := func(e log.EventEntryAdded) bool { return strings.Contains(e.Entry.Text, "frame-ancestors 'none'") }
		during(p, log.EntryAdded, blocked, chromedp.Evaluate[chromedp.Void]("void "+frame))
		// A form can be sent anywhere, and has no effect there.
		p.do(`(() => {
			const e = document.createElement("form");
			e.method = "post";
			e.action = %s;
			e.append(document.createElement("button"));
			document.body.prepend(e);
		})()`, s.Base+"/sandbox/api/tokens/"+id+"/consume")
		// Without mouse and keys: an answer to them would meet the page that ends.
		during(p, page.LoadEventFired, nil, chromedp.Evaluate[chromedp.Void](`void setTimeout(() => document.querySelector("form button").click())`,
			func(p *runtime.EvaluateParams) { p.UserGesture = new(true) }))
		p.text("body", "CROSS_ORIGIN")
	}
	if b := s.call("GET", "/tokens/"+id+"/security-code", ""); !bytes.Contains(b, []byte("true")) {
		s.t.Errorf("the code was consumed: %s", b)
	}
	if b := s.call("GET", "/tokens/"+id, ""); !bytes.Contains(b, []byte(`"network_token_status":"active"`)) {
		s.t.Errorf("the token is %s", b)
	}
	if b := s.call("GET", "/tokens/"+id+"/payment-data", ""); !bytes.Contains(b, []byte(`"data":[]`)) {
		s.t.Errorf("its payment data is %s", b)
	}
}

// testSecrets looks for the secrets of sandbox.json in every place that the browser could
// read.
func (s *sandbox) testSecrets() {
	id := s.stored(0)
	p := s.tab(1280)
	var mu sync.Mutex
	var headers []string
	var finished []network.RequestID
	err := chromedp.Listen(p.ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *network.EventResponseReceivedExtraInfo:
			headers = append(headers, fmt.Sprint(e.Headers, e.HeadersText))
		case *network.EventRequestWillBeSentExtraInfo:
			headers = append(headers, fmt.Sprint(e.Headers))
		case *network.EventLoadingFinished:
			finished = append(finished, e.RequestID)
		}
	})
	if err != nil {
		s.t.Fatal(err)
	}
	p.allow(`"DocumentCookie"`) // which is read below
	p.navigate(s.Base + "/")
	p.await("ready")
	p.enter()
	p.pills(id, "active,code available")
	p.unfold(id)
	p.act(id, "payment-data")
	p.text("#token-"+id, "Cryptogram created.")
	p.wait(`document.querySelector("#token-" + %s + " .jwe")`, id)
	p.enterScenario(1)
	p.pills(p.await("success").TokenID, "active,code available")
	p.act(id, "refresh-session")
	p.await("ready")
	p.enter()
	p.act(id, "suspend")
	p.pills(id, "inactive,code available")
	p.act(id, "read")
	p.text("#token-"+id, "The response is under Calls.")

	kept := eval[string](&p.world, `(async () => JSON.stringify({
		html: document.documentElement.outerHTML, values: [...document.querySelectorAll("input")].map((e) => e.value), events,
		local: {...localStorage}, session: {...sessionStorage}, cookie: document.cookie, name: window.name, state: history.state,
		databases: await indexedDB.databases(), caches: await caches.keys(), workers: (await navigator.serviceWorker.getRegistrations()).length,
	}))()`)
	for _, empty := range []string{`"local":{}`, `"session":{}`, `"cookie":""`, `"databases":[]`, `"caches":[]`, `"workers":0`} {
		if !strings.Contains(kept, empty) {
			s.t.Errorf("the page keeps something, not %s", empty)
		}
	}
	sinks := []any{kept, eval[string](p.frame, `document.documentElement.outerHTML`)}
	for _, c := range call(&p.world, storage.GetCookies, storage.GetCookiesParams{}).Cookies {
		sinks = append(sinks, c.Name, c.Value)
	}
	mu.Lock()
	answers := slices.Clone(finished)
	for _, h := range headers {
		sinks = append(sinks, h)
	}
	mu.Unlock()
	var bodies bytes.Buffer
	for _, answer := range answers {
		bodies.Write(call(&p.world, network.GetResponseBody, network.GetResponseBodyParams{RequestID: answer}).Body)
	}
	sinks = append(sinks, bodies.Bytes())
	for _, proof := range []string{id, `"encrypted_authentication_data"`, `"cryptogram"`, `"security_codes"`, "const shown = new Map()", "This is a sandbox"} {
		if !strings.Contains(bodies.String(), proof) {
			s.t.Errorf("%s was not among the answers: the test proves nothing", proof)
		}
	}
	var secrets []string
	for _, a := range s.Accounts {
		secrets = append(secrets, a.APIKey, a.PaymentSecret)
	}
	vaulttest.AssertNoLeak(s.t, append(secrets, "vk_test_"), sinks...)
}

// picture saves a picture of the whole page among the artefacts of the test.
func (p *tab) picture(name string) {
	p.t.Helper()
	width := eval[int64](&p.world, `innerWidth`)
	height := eval[int64](&p.world, `document.documentElement.scrollHeight`)
	call(&p.world, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
	p.screenshot(name)
	p.size(width, 1)
}

// testLooks has axe check the states of the page, and saves pictures of them.
func (s *sandbox) testLooks() {
	p := s.open(1280)
	see := func(state string) {
		s.t.Helper()
		p.world.axe(state)
		// No element sticks out at the side.
		want(&p.world, true, `document.documentElement.scrollWidth <= innerWidth`)
		p.picture(state)
	}
	see("empty")
	id, suspended, failed := s.stored(44), s.stored(0), s.stored(10)
	p.pills(suspended, "active,code available")
	s.call("POST", "/simulator/tokens/"+suspended+"/suspend", "")
	p.pills(suspended, "inactive,code available")
	p.pills(failed, "failed,code available")
	p.pills(id, "active,code available")
	p.unfold(id)
	for range 2 {
		p.act(id, "payment-data")
		p.text("#token-"+id+" .status.bad", "No payment data")
	}
	p.act(id, "payment-data")
	p.wait(`document.querySelector("#token-" + %s + " .jwe")`, id)
	p.act(id, "refresh-session")
	p.await("ready")
	p.enter()
	p.click("#call-list summary")
	p.click("#token-%s .jwe summary", id)
	p.do(`document.querySelectorAll("#test-cards details, .records details").forEach((e) => { e.open = true; })`)
	p.wait(`document.querySelectorAll(".records code").length >= 3`)
	pending := s.stored(51)
	p.pills(pending, "pending,code available")
	see("light")
	p.media("prefers-color-scheme", "dark")
	see("dark")
	p.act(id, "delete-token")
	p.wait(`document.querySelector("#delete-dialog").open`)
	p.world.axe("dialog")
	p.screenshot("dark-dialog")
	p.media("prefers-color-scheme", "light")
	p.size(360, 1)
	p.screenshot("dialog")
	p.keys(kb.Escape)
	see("narrow")
}
