package browser_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/vaulttest"
	"github.com/chromedp/cdproto/storage"
)

// TestStranger opens the component in a page whose origin is not allowed.
func TestStranger(t *testing.T) {
	t.Parallel()
	t.Run("script", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		p := r.open(visit{shop: r.stranger})
		p.allow(`CORS|CorsIssue|net::ERR_FAILED`)
		want(&p.world, false, `card.matches(":defined")`)
		if len(r.wire.seen("GET", "/card-entry.js")) != 1 || len(r.wire.seen("GET", "/frame.html")) != 0 {
			t.Error("more than the script was requested")
		}
	})
	t.Run("copy of the script", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		p := r.open(visit{shop: r.stranger, copied: true, hurry: []int{10_000}})
		p.allow(`frame-ancestors|ERR_BLOCKED_BY_(RESPONSE|CSP)|ContentSecurityPolicy|recipient window's origin \('null'\)`)
		d := p.wantFailure("unavailable", "check_setup")
		if p.count("ready") != 0 || len(r.wire.seen("GET", "/sessions/")) != 0 {
			t.Errorf("a stranger's page reached the session: %+v", d)
		}
	})
	t.Run("frame let in", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		r.wire.set(func(w http.ResponseWriter, r *http.Request, vault http.Handler) { vault.ServeHTTP(unguarded{w}, r) })
		p := r.open(visit{shop: r.stranger, copied: true, hurry: []int{10_000}})
		p.enter()
		p.wantFailure("unavailable", "check_setup")
		if p.count("ready") != 0 || len(r.wire.seen("GET", "/sessions/")) != 0 {
			t.Error("the frame answers a stranger's page")
		}
	})
	t.Run("frame led elsewhere", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		r.wire.set(func(w http.ResponseWriter, req *http.Request, vault http.Handler) {
			if strings.HasSuffix(req.URL.Path, "/frame.html") {
				http.Redirect(w, req, r.abroad.origin+"/thief", http.StatusFound)
				return
			}
			vault.ServeHTTP(w, req)
		})
		p := r.open(visit{hurry: []int{10_000}})
		p.allow(`recipient window's origin`)
		p.wantFailure("unavailable", "check_setup")
		want(&p.world, 0, `messages.length`)
	})
	t.Run("wrong address", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil)
		p := r.open(visit{shop: r.home, copied: true, base: r.home.origin + "/nowhere", hurry: []int{10_000}})
		p.refuses(404)
		p.wantFailure("unavailable", "check_setup")
		// The right one is accepted without reloading the page.
		p.do(`patient()`)
		p.do(`card.setAttribute("base-url", %s)`, r.base)
		p.await("ready")
	})
}

// TestForeignAccount opens the component in the shop of another account.
func TestForeignAccount(t *testing.T) {
	t.Parallel()
	for name, where := range map[string]func(r *rig) (own, foreign *shop){
		"same site":  func(r *rig) (own, foreign *shop) { return r.abroad, r.other },
		"other site": func(r *rig) (own, foreign *shop) { return r.other, r.abroad },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			own, foreign := where(r)
			r.origins = []string{own.origin}
			p := r.open(visit{shop: foreign})
			p.refuses(403)
			p.wantFailure("unavailable", "check_setup")
			if p.count("ready") != 0 {
				t.Error("a session of another account is read")
			}
			for _, request := range r.wire.seen("GET", "/frame.html") {
				if strings.Contains(request.url, url.QueryEscape(own.origin)) {
					t.Errorf("the frame was requested by %s", request.url)
				}
			}
			for _, shop := range []*shop{own, r.home} {
				p := r.ready(visit{shop: shop})
				p.enterCard(visa)
				p.submit()
				p.wantToken(p.await("success"), "411111******0005")
			}
		})
	}
}

// TestHeldPage puts a page with the component into a frame of another shop: every page
// around the card must be allowed, and is.
func TestHeldPage(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{shop: r.other})
	session := r.newSession()
	p.do(`(() => {
		const e = document.createElement("iframe");
		e.src = %s;
		e.title = "shop";
		document.querySelector("main").append(e);
	})()`, r.abroad.page(visit{session: session}))
	r.wire.await(t, 1, "GET", "/sessions/"+session)
}

// An unguarded answer has no policy about the pages that may embed it.
type unguarded struct{ http.ResponseWriter }

func (w unguarded) WriteHeader(status int) {
	w.Header().Del("Content-Security-Policy")
	w.ResponseWriter.WriteHeader(status)
}

func (w unguarded) Write(b []byte) (int, error) {
	w.Header().Del("Content-Security-Policy") // no status was written
	return w.ResponseWriter.Write(b)
}

// openRoots gives a page the frame in the component's closed shadow root. A script that
// runs before the component's could do the same.
const openRoots = `{
	const attach = Element.prototype.attachShadow;
	globalThis.roots = [];
	Element.prototype.attachShadow = function (init) {
		const root = attach.call(this, init);
		roots.push(root);
		return root;
	};
}`

// forgeries are made-up messages. A few carry ports.
const forgeries = `["cardvault:connect", "cardvault:ready", "cardvault:success", "cardvault:error", "connect", "ready", "change", "success", "error", "submit", "challenge", "reset"]
	.flatMap((type) => [
		{type},
		{type, token_id: "00000000-0000-4000-8000-000000000000", detail: {token_id: "00000000-0000-4000-8000-000000000000"}},
		{type, session_id: %[1]s, sessionId: %[1]s, session: %[1]s, baseUrl: "https://evil.example", url: "https://evil.example"},
		[type], type, JSON.stringify({type}),
	]).concat([null, undefined, 0, "", [], {}, {type: {}}, {type: null}, new Date(), new Map([["type", "success"]])])`

// TestForgedMessages posts forged messages from every possible sender: from the page to the
// frame and to itself, and from a third party's frame to both. All are ignored and
// unanswered.
func TestForgedMessages(t *testing.T) {
	t.Parallel()
	for name, where := range map[string]func(*rig) *shop{
		"same process":  func(r *rig) *shop { return r.other },
		"other process": func(r *rig) *shop { return r.abroad },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			p := r.ready(visit{shop: where(r), before: openRoots})
			p.enterCard(visa)
			p.wait(`events.at(-1).detail.complete`)
			before := eval[int](&p.world, "events.length")
			reads := len(r.wire.seen("GET", "/sessions/"))
			session := r.newSession()

			p.do(`(() => {
				globalThis.answers = [];
				const forgeries = `+strings.ReplaceAll(forgeries, "%[1]s", "%s")+`;
				for (const target of [window, roots[0].querySelector("iframe").contentWindow]) {
					for (const message of forgeries) {
						const {port1, port2} = new MessageChannel();
						port1.onmessage = ({data}) => answers.push(data);
						target.postMessage(message, "*", [port2]);
						target.postMessage(message, "*");
						for (const m of forgeries) port1.postMessage(m);
					}
				}
			})()`, session, session, session)
			// A frame of the page's origin, which is not the page.
			p.do(`new Promise((done) => {
				const e = document.createElement("iframe");
				e.src = "/neighbour";
				e.title = "neighbour";
				e.onload = done;
				document.body.append(e);
			})`)
			p.wait(`messages.some((m) => m.data === "neighbour is done")`)
			// Earlier messages have arrived when this one has.
			p.do(`new Promise((done) => { addEventListener("message", done); postMessage("", "*"); })`)
			p.frame.do(`new Promise((done) => setTimeout(done))`)

			want(&p.world, before, "events.length")
			want(&p.world, 0, "answers.length")
			want(&p.world, "[]", `JSON.stringify(messages.filter((m) => m.origin === %s || m.data?.leaked))`, r.home.origin)
			if n := len(r.wire.seen("GET", "/sessions/")) - reads; n != 0 || len(r.wire.seen("POST", "")) != 0 {
				t.Errorf("%d sessions were read for a forger", n)
			}
			p.submit()
			p.wantToken(p.await("success"), "411111******0005")
		})
	}
}

// TestForgedConnection has a frame of the page's origin try to connect before the element.
func TestForgedConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.open(visit{shop: r.abroad, neighbour: true, before: openRoots})
	p.await("ready")
	p.enter()
	p.enterCard(visa)
	p.submit()
	p.wantToken(p.await("success"), "411111******0005")
	p.wait(`messages.some((m) => m.data === "neighbour is done")`)
	want(&p.world, "[]", `JSON.stringify(messages.filter((m) => m.data.leaked))`)
	want(&p.world, 1, `events.filter((e) => e.type === "ready").length`)
	want(&p.world, 1, `events.filter((e) => e.type === "success").length`)
}

// TestTwo has two independent components on a page.
func TestTwo(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{})
	first := p.frame
	p.do(`(() => {
		const second = document.createElement("card-entry");
		second.setAttribute("session-id", %s);
		globalThis.seconds = [];
		for (const type of ["ready", "success", "error"]) second.addEventListener(type, ({detail}) => seconds.push({type, detail}));
		document.querySelector("main").append(second);
		globalThis.second = second;
	})()`, r.newSession())
	p.wait(`seconds.some((e) => e.type === "ready")`)
	p.enterCard(amex)
	p.enter()
	p.do(`second.focus()`)
	p.frame.wait(`document.activeElement.id === "number"`)
	p.keys(visa.number + "\t" + visa.expiry + "\t" + visa.code)
	p.do(`void second.submit()`)
	p.wait(`seconds.some((e) => e.type === "success")`)
	if n := p.count("success"); n != 0 {
		t.Error("the first component succeeded with the second")
	}
	p.rig.token(eval[string](&p.world, `seconds.at(-1).detail.token_id`))
	p.frame = first
	p.submit()
	p.wantToken(p.await("success"), "378282*****0008")
	want(&p.world, 2, "seconds.length")
}

// TestMoved moves the component within the page, which reloads its frame.
func TestMoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{})
	p.allow(`Document failed: net::ERR_ABORTED`) // the first frame
	p.do(`document.querySelector("main").append(card)`)
	p.await("ready")
	p.enter()
	p.enterCard(visa)
	// Here it is outside any form.
	p.keys("\r")
	p.wantToken(p.await("success"), "411111******0005")
}

// TestNothingLeaks enters a card and looks for it, and for the session, wherever they must
// not be.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	for name, where := range map[string]func(*rig) *shop{
		"own origin":   func(r *rig) *shop { return r.home },
		"other origin": func(r *rig) *shop { return r.other },
		"other site":   func(r *rig) *shop { return r.abroad },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			session := r.newSession()
			// Every read of a message's data on the page is recorded.
			p := r.ready(visit{shop: where(r), session: session, attributes: `cardholder-name="required" name="token"`, before: `{
				const {get, ...rest} = Object.getOwnPropertyDescriptor(MessageEvent.prototype, "data");
				globalThis.overheard = [];
				Object.defineProperty(MessageEvent.prototype, "data", {...rest, get() {
					const data = get.call(this);
					overheard.push(JSON.stringify(data));
					return data;
				}});
			}`})
			const name = "Wilhelmina Xyloph"
			c := entered{"4242424242424242", "1230", "737"}
			p.fill("name", name)
			p.enterCard(c)
			// Also with an error, and with everything readable meanwhile.
			p.fill("number", "4242424242424241\t")
			p.frame.wait(`document.querySelector("[aria-invalid=true]")`)
			p.fill("number", c.number+"\t")
			parent := `JSON.stringify({
				html: document.documentElement.outerHTML, events, messages, overheard, url: location.href, state: history.state, title: document.title,
				local: {...localStorage}, sessionStorage: {...sessionStorage}, name: window.name,
				form: [...new FormData(document.querySelector("#pay"))], resources: performance.getEntries().map((e) => e.name),
				globals: Object.getOwnPropertyNames(window),
			})`
			sinks := []any{eval[string](&p.world, parent)}
			p.submit()
			p.wantToken(p.await("success"), "424242******4242")
			sinks = append(sinks, eval[string](&p.world, parent))
			want(&p.world, 0, `messages.length`)
			if !strings.Contains(sinks[1].(string), `"overheard":["`) {
				t.Error("nothing was overheard: the test proves nothing")
			}
			frame := eval[string](p.frame, `(async () => JSON.stringify({
				url: location.href, state: history.state, name: window.name, title: document.title,
				local: {...localStorage}, sessionStorage: {...sessionStorage},
				databases: await indexedDB.databases(), caches: await caches.keys(), workers: (await navigator.serviceWorker.getRegistrations()).length,
				length: [localStorage.length, sessionStorage.length],
			}))()`)
			html := eval[string](p.frame, `document.documentElement.outerHTML`)
			cookies := call(&p.world, storage.GetCookies, storage.GetCookiesParams{})
			if len(cookies.Cookies) != 0 {
				t.Errorf("%d cookies", len(cookies.Cookies))
			}
			for _, empty := range []string{`"local":{}`, `"sessionStorage":{}`, `"databases":[]`, `"caches":[]`, `"workers":0`} {
				if !strings.Contains(frame, empty) {
					t.Errorf("the frame keeps something: %s", frame)
				}
			}
			p.mu.Lock()
			sinks = append(sinks, frame, html, slices.Clone(p.problems))
			p.mu.Unlock()

			var encrypted int
			for _, request := range r.wire.seen("", "") {
				header, err := json.Marshal(request.header)
				if err != nil {
					t.Fatal(err)
				}
				sinks = append(sinks, request.url, string(header), request.body)
				u, err := url.Parse(request.url)
				if err != nil {
					t.Fatal(err)
				}
				if path, found := strings.CutPrefix(u.Path, "/vault/sessions/"); found {
					if path != session && path != session+complete || u.RawQuery != "" {
						t.Errorf("%s %s", request.method, request.url)
					}
					for _, name := range []string{"Referer", "Cookie", "Authorization"} {
						if request.header.Get(name) != "" {
							t.Errorf("%s is sent to the vault", name)
						}
					}
					if request.method == "POST" {
						encrypted++
						if origin := request.header.Get("Origin"); origin != r.home.origin {
							t.Errorf("the call comes from %s, not from the frame", origin)
						}
					}
				} else {
					vaulttest.AssertNoLeak(t, []string{session}, request.url)
				}
				vaulttest.AssertNoLeak(t, []string{session}, string(header))
			}
			if encrypted != 1 {
				t.Errorf("%d completions", encrypted)
			}
			vaulttest.AssertNoLeak(t, []string{session}, frame, html)
			secrets := []string{c.number, c.number[:12], "4242424242424241", name, "Xyloph", "12/30"}
			vaulttest.AssertNoLeak(t, secrets, sinks...)
			vaulttest.AssertNoCardNumber(t, nil, sinks...)
			vaulttest.AssertNoLeak(t, []string{c.code}, sinks[0], sinks[1], frame, html)
		})
	}
}
