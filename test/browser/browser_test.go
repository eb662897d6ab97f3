// Package browser_test drives the card-entry component in Chromium: real key
// events, real frames in processes of their own, a real vault behind them.
//
// Every console message, exception, violation of the Content-Security-Policy and failed
// request of a page or its frame fails the test, unless it was announced. With go test
// -artifacts the screenshots are kept.
package browser_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const (
	// patience limits the wait for an event. Only a failing test waits that long.
	patience = 5 * time.Minute

	// toLoad is the time in milliseconds in which the frame of the component has to load.
	toLoad = 10_000

	// testTime bounds a test. It leaves room for a busy machine.
	testTime = 20 * time.Minute

	// maxTests bounds the tests with open tabs, on machines with many cores.
	maxTests = 4
)

var (
	places  = make(chan struct{}, maxTests)
	holders sync.Map // tests that hold a place
)

// place waits until a test may open tabs. Only its first call waits: tests that waited for
// second places would block each other.
func place(t testing.TB) {
	if _, has := holders.LoadOrStore(t, true); has {
		return
	}
	places <- struct{}{}
	t.Cleanup(func() {
		holders.Delete(t)
		<-places
	})
}

// chromium is the browser of the package, started by the first test that needs it.
var chromium struct {
	start  sync.Once
	ctx    context.Context
	cancel context.CancelFunc
	err    error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if chromium.cancel != nil {
		chromium.cancel()
	}
	os.Exit(code)
}

// browser returns the context of the browser. It skips t if Chromium is not installed.
func browser(t testing.TB) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("Chromium is not installed (Debian: apt-get install chromium)")
	}
	chromium.start.Do(func() {
		opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
			chromedp.ExecPath(path),
			// In containers Chromium's own sandbox does not start; the pages are ours.
			chromedp.NoSandbox,
			chromedp.DisableGPU,
			chromedp.Flag("disable-quic", true),
			chromedp.Flag("disable-component-update", true),
			// The popup of the address bar costs as much as a page.
			chromedp.Flag("disable-features", "Translate,WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup"),
		)
		ctx, stop := chromedp.NewExecAllocator(context.Background(), opts...)
		ctx, cancel := chromedp.NewContext(ctx)
		chromium.ctx, chromium.cancel = ctx, func() { cancel(); stop() }
		chromium.err = chromedp.Do(ctx)
	})
	if chromium.err != nil {
		t.Fatal("Chromium does not start: ", chromium.err)
	}
	return chromium.ctx
}

// A world evaluates JavaScript. It is the shop's page, with its own scripts, or an isolated
// world of the frame. That shares the frame's DOM and none of its variables.
type world struct {
	t       testing.TB
	ctx     context.Context
	context runtime.ExecutionContextID // 0 is the page's own
}

// eval returns the value of an expression, in which each %s is an argument as JSON. It
// awaits promises.
func eval[T any](w *world, expression string, args ...any) T {
	w.t.Helper()
	expression = w.script(expression, args)
	v, err := chromedp.Run(w.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise, func(p *runtime.EvaluateParams) {
		p.ContextID = w.context
	}))
	if err != nil {
		w.t.Fatalf("%s: %v", head(expression), err)
	}
	return v
}

// A script is an argument that is inserted without encoding.
type script string

func (w *world) script(expression string, args []any) string {
	w.t.Helper()
	texts := make([]any, len(args))
	for i, a := range args {
		if s, ok := a.(script); ok {
			texts[i] = s
			continue
		}
		b, err := json.Marshal(a)
		if err != nil {
			w.t.Fatal(err)
		}
		texts[i] = b
	}
	return fmt.Sprintf(expression, texts...)
}

func head(s string) string {
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}

// do evaluates an expression for its effect. It awaits promises.
func (w *world) do(expression string, args ...any) {
	w.t.Helper()
	eval[chromedp.Void](w, "(async () => { await ("+expression+"); })()", args...)
}

// wait waits until an expression is true.
func (w *world) wait(expression string, args ...any) {
	w.t.Helper()
	expression = w.script(expression, args)
	loop := `new Promise((done) => {
		const end = performance.now() + ` + strconv.FormatInt(patience.Milliseconds(), 10) + `;
		(function look() {
			if (` + expression + `) done(true);
			else if (performance.now() > end) done(false);
			else setTimeout(look, 5);
		})();
	})`
	if !eval[bool](w, "%s", script(loop)) {
		w.t.Fatalf("never true: %s", expression)
	}
}

// want checks the value of an expression.
func want[T comparable](w *world, expected T, expression string, args ...any) {
	w.t.Helper()
	if got := eval[T](w, expression, args...); got != expected {
		w.t.Errorf("%s is %v, not %v", w.script(expression, args), got, expected)
	}
}

// A tab shows a shop's page with the component.
type tab struct {
	world
	rig   *rig
	frame *world // of the component, set by enter
	read  int    // number of events that await has seen

	mu       sync.Mutex
	allowed  []*regexp.Regexp
	problems []string
	frames   chan frameRef
}

// A frameRef is a frame of the component: a target of its own, or a frame in the tab's
// process.
type frameRef struct {
	target target.ID
	frame  cdp.FrameID
}

// A visit describes the page that open opens. The zero value is a shop on the vault's site
// with another origin, in a window of 800 by 900.
type visit struct {
	shop       *shop
	path       string // of an existing page; if "" one is made
	session    string // id; made if ""
	attributes string // of the element, besides session-id and base-url
	html       string // attributes of <html>; defaults to lang="en"
	copied     bool   // the script is the shop's own copy
	base       string // the copy's base-url; defaults to the vault's
	neighbour  bool   // another frame of the shop comes before the component
	isolated   bool   // cross-origin isolated
	hurry      []int  // timers of these milliseconds run ten times as fast
	width      int64
	before     string // a script that runs before any other, in frames of the tab's process too
}

// hurry makes some timers run fast, so that a test need not wait for them, and others slowly: a
// browser on a busy machine has more time than shoppers have. patient() slows the fast ones.
const hurry = `{
	const hurried = %s, slowed = %s;
	window.patient = () => slowed.push(...hurried.splice(0));
	const pace = (ms) => (hurried.includes(ms) ? ms / 10 : slowed.includes(ms) ? ms * 10 : ms);
	const later = window.setTimeout;
	window.setTimeout = (f, ms, ...args) => later(f, pace(ms), ...args);
	const timeout = AbortSignal.timeout;
	AbortSignal.timeout = (ms) => timeout.call(AbortSignal, pace(ms));
}`

// open opens a page in a profile of its own.
func (r *rig) open(v visit) *tab {
	t := r.t
	t.Helper()
	parent := browser(t)
	place(t)
	ctx, cancel := context.WithTimeout(parent, testTime)
	t.Cleanup(cancel)
	ctx, closeTab := chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(closeTab)
	p := &tab{world: world{t: t, ctx: ctx}, rig: r, frames: make(chan frameRef, 16)}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	p.observe(ctx)
	if v.width == 0 {
		v.width = 800
	}
	p.size(v.width, 1)
	hurried, slowed := append([]int{}, v.hurry...), []int{toLoad} // JSON has null for a nil slice
	if slices.Contains(hurried, toLoad) {
		slowed = []int{}
	}
	timers := p.script(hurry, []any{hurried, slowed})
	call(&p.world, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: timers + "\n" + v.before})
	if v.shop == nil {
		v.shop = r.other
	}
	url := v.shop.origin + v.path
	if v.path == "" {
		if v.session == "" {
			v.session = r.newSession()
		}
		url = v.shop.page(v)
	}
	if err := chromedp.Do(ctx, chromedp.Navigate(url)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.check)
	return p
}

// call sends a command of the DevTools protocol.
func call[P, R any](w *world, c cdp.Command[P, R], params P) R {
	w.t.Helper()
	r, err := chromedp.Call(w.ctx, c, params)
	if err != nil {
		w.t.Fatalf("%s: %v", c.Method, err)
	}
	return r
}

// observe collects the problems of a target, including earlier ones.
func (p *tab) observe(ctx context.Context) {
	p.t.Helper()
	frame := chromedp.FromContext(ctx).Target != chromedp.FromContext(p.ctx).Target
	err := chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventConsoleAPICalled:
			var text []string
			for _, a := range e.Args {
				text = append(text, string(a.Value)+a.Description)
			}
			p.problem("console.%s: %s", e.Type, strings.Join(text, " "))
		case *runtime.EventExceptionThrown:
			d := e.ExceptionDetails
			if d.Exception != nil {
				d.Text += " " + d.Exception.Description
			}
			p.problem("exception: %s", d.Text)
		case *log.EventEntryAdded:
			p.problem("%s %s: %s (%s)", e.Entry.Source, e.Entry.Level, e.Entry.Text, e.Entry.URL)
		case *network.EventLoadingFailed:
			p.problem("%s failed: %s %s", e.Type, e.ErrorText, e.BlockedReason)
		case *audits.EventIssueAdded:
			b, err := json.Marshal(e.Issue.Details)
			p.problem("issue %s: %s %v", e.Issue.Code, b, err)
		case *target.EventAttachedToTarget:
			if e.TargetInfo.Type == "iframe" && !frame {
				p.frames <- frameRef{target: e.TargetInfo.TargetID}
			}
		case *page.EventFrameNavigated:
			if e.Frame.ParentID != "" && strings.Contains(e.Frame.URL, "/sdk/v1/frame.html?") {
				p.frames <- frameRef{frame: e.Frame.ID}
			}
		}
	})
	if err != nil {
		p.t.Fatal(err)
	}
	w := &world{t: p.t, ctx: ctx}
	// Otherwise a page in the background would not have the focus.
	call(w, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	call(w, audits.Enable, cdp.Empty{})
	if frame {
		// Re-enabling these repeats their earlier events.
		call(w, runtime.Disable, cdp.Empty{})
		call(w, runtime.Enable, cdp.Empty{})
		call(w, log.Disable, cdp.Empty{})
		call(w, log.Enable, cdp.Empty{})
	}
}

func (p *tab) problem(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

// allow announces problems that match a pattern.
func (p *tab) allow(pattern string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allowed = append(p.allowed, regexp.MustCompile(pattern))
}

// refuses announces an answer with a status. Its body is not read, and may be cut off when the
// component removes its frame.
func (p *tab) refuses(status int) {
	p.allow(fmt.Sprintf("status of %d", status))
	p.allow(`^Fetch failed: net::ERR_ABORTED`)
}

// check fails the test for each unannounced problem.
func (p *tab) check() {
	if p.t.Failed() {
		p.screenshot("failed")
		p.t.Logf("events: %s", eval[[]byte](&p.world, "events"))
	}
	// Events arrive before the answers to later commands.
	for _, w := range []*world{&p.world, p.frame} {
		if w != nil && w.ctx.Err() == nil {
			if _, err := chromedp.Run(w.ctx, chromedp.Evaluate[int]("1")); err != nil {
				p.t.Error(err)
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, problem := range p.problems {
		if !slices.ContainsFunc(p.allowed, func(r *regexp.Regexp) bool { return r.MatchString(problem) }) {
			p.t.Error(problem)
		}
	}
}

// enter waits for the frame of the component and for its form.
func (p *tab) enter() *world {
	p.t.Helper()
	var ref frameRef
	select {
	case ref = <-p.frames:
	case <-time.After(patience):
		p.t.Fatal("the component has no frame")
	}
	w := &world{t: p.t, ctx: p.ctx}
	if ref.target != "" {
		ctx, cancel := chromedp.NewContext(p.ctx, chromedp.WithTargetID(ref.target), chromedp.WithDetachOnCancel())
		context.AfterFunc(p.ctx, cancel) // not before check
		if err := chromedp.Do(ctx); err != nil {
			p.t.Fatal(err)
		}
		p.observe(ctx)
		w.ctx, ref.frame = ctx, cdp.FrameID(ref.target)
		w.wait(`location.pathname.endsWith("/frame.html")`)
	}
	w.context = call(w, page.CreateIsolatedWorld, page.CreateIsolatedWorldParams{FrameID: ref.frame}).ExecutionContextID
	p.frame = w
	w.wait(`document.querySelector("#card")`)
	return w
}

// An event of the component, as received by the shop's page.
type event struct {
	Type   string
	Detail json.RawMessage
}

// A detail holds the members of every event.
type detail struct {
	Action              string            `json:"action"`
	ReasonCode          string            `json:"reason_code"`
	Message             string            `json:"message"`
	RetryAfter          int               `json:"retry_after"`
	TokenID             string            `json:"token_id"`
	MaskedAccountNumber string            `json:"masked_account_number"`
	Scheme              string            `json:"scheme"`
	Brand               *string           `json:"brand"`
	Complete            bool              `json:"complete"`
	Errors              map[string]string `json:"errors"`
	URL                 string            `json:"url"`
}

// await waits for the next event of a type after those already awaited. An unawaited error
// fails the test.
func (p *tab) await(kind string) detail {
	p.t.Helper()
	p.wait(`events.slice(%s).some((e) => e.type === %s || e.type === "error")`, p.read, kind)
	for i, e := range eval[[]event](&p.world, "events")[p.read:] {
		switch e.Type {
		case kind:
			p.read += i + 1
			return p.decode(e)
		case "error":
			p.t.Fatalf("no %s, but error %s", kind, e.Detail)
		}
	}
	panic("unreachable: the event was there")
}

func (p *tab) decode(e event) (d detail) {
	p.t.Helper()
	if err := json.Unmarshal(e.Detail, &d); err != nil {
		p.t.Fatal(err)
	}
	return d
}

// last returns the latest event of a type.
func (p *tab) last(kind string) detail {
	p.t.Helper()
	for _, e := range slices.Backward(eval[[]event](&p.world, "events")) {
		if e.Type == kind {
			return p.decode(e)
		}
	}
	p.t.Fatalf("no event %s", kind)
	return detail{}
}

// count returns the number of events of a type.
func (p *tab) count(kind string) int {
	p.t.Helper()
	return eval[int](&p.world, `events.filter((e) => e.type === %s).length`, kind)
}

// ready opens a page and waits until the component is ready.
func (r *rig) ready(v visit) *tab {
	r.t.Helper()
	p := r.open(v)
	p.await("ready")
	p.enter()
	return p
}

// keys presses keys like a keyboard: the focused element receives them.
func (p *tab) keys(keys string, modifiers ...chromedp.Modifier) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, chromedp.KeyEvent(keys, chromedp.KeyModifiers(modifiers...))); err != nil {
		p.t.Fatal(err)
	}
}

// edit presses a key that the operating system maps to an editing command.
func (p *tab) edit(key, command string) {
	p.t.Helper()
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeRawKeyDown, input.DispatchKeyEventTypeKeyUp} {
		params := input.DispatchKeyEventParams{
			Type: kind, Key: key, Code: "Key" + strings.ToUpper(key), Modifiers: int64(chromedp.ModifierCtrl),
			WindowsVirtualKeyCode: int64(strings.ToUpper(key)[0]),
		}
		if kind == input.DispatchKeyEventTypeRawKeyDown {
			params.Commands = []string{command}
		}
		call(&p.world, input.DispatchKeyEvent, params)
	}
}

// clipboard guards the browser's only clipboard.
var clipboard sync.Mutex

// paste pastes a text into a field of the frame, from a field of the page.
func (p *tab) paste(field, text string) {
	p.t.Helper()
	clipboard.Lock()
	defer clipboard.Unlock()
	p.do(`(() => { const e = document.querySelector("#before"); e.value = %s; e.focus(); e.select(); })()`, text)
	p.edit("c", "copy")
	p.focus(field)
	p.edit("v", "paste")
	// Another process reads the clipboard.
	p.frame.wait(`document.querySelector(%s).value !== ""`, "#"+field)
}

// focus moves the focus to a field of the frame, by keys alone.
func (p *tab) focus(field string) {
	p.t.Helper()
	if !eval[bool](&p.world, `document.activeElement === card`) || !eval[bool](p.frame, `document.activeElement.localName === "input"`) {
		// Without this, the field that last had the focus would be taken for the focused
		// one.
		p.frame.do(`document.activeElement.blur()`)
		p.do(`card.focus()`)
		p.frame.wait(`document.activeElement.localName === "input"`)
	}
	way := eval[int](p.frame, `(() => {
		const inputs = [...document.querySelectorAll("input")].filter((e) => e.checkVisibility());
		return inputs.findIndex((e) => e.id === %s) - inputs.indexOf(document.activeElement);
	})()`, field)
	for range max(way, -way) {
		if way > 0 {
			p.keys(kb.Tab)
		} else {
			p.keys(kb.Tab, chromedp.ModifierShift)
		}
	}
	p.frame.wait(`document.activeElement.id === %s`, field)
}

// fill empties a field and types into it.
func (p *tab) fill(field, text string) {
	p.t.Helper()
	p.focus(field)
	p.edit("a", "selectAll")
	p.keys(kb.Backspace + text)
}

// An entered holds the parts of a card as a shopper types them.
type entered struct{ number, expiry, code string }

var (
	visa = entered{"4111110000000005", "1230", "737"}
	amex = entered{"378282000000008", "1230", "7373"}
)

// enterCard types a card from field to field, replacing their contents.
func (p *tab) enterCard(c entered) {
	p.t.Helper()
	p.fill("number", c.number+kb.Tab+c.expiry+kb.Tab+c.code)
}

// submit calls submit and drops its promise: an event reports the outcome.
func (p *tab) submit() {
	p.t.Helper()
	p.do(`void card.submit()`)
}

// value returns the text that a field of the frame shows.
func (p *tab) value(field string) string {
	p.t.Helper()
	return eval[string](p.frame, `document.querySelector(%s).value`, "#"+field)
}

// size sets the window's width in CSS pixels, and the number of display pixels for each.
func (p *tab) size(width int64, scale float64) {
	p.t.Helper()
	call(&p.world, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 900, DeviceScaleFactor: scale})
}

// media sets a media feature, in the frame too.
func (p *tab) media(feature, value string) {
	p.t.Helper()
	worlds := []*world{&p.world}
	if p.frame != nil && p.frame.ctx != p.ctx {
		worlds = append(worlds, p.frame)
	}
	for _, w := range worlds {
		call(w, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: feature, Value: value}}})
	}
}

// screenshot saves a picture of the tab among the artefacts of the test.
func (p *tab) screenshot(name string) {
	p.t.Helper()
	png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(p.t.ArtifactDir(), name+".png"), png, 0o600)
	}
	if err != nil {
		p.t.Error(err)
	}
}
