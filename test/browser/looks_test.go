package browser_test

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// axeScript returns axe-core, as `npm ci --prefix test` installs it.
var axeScript = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile(filepath.Join("..", "node_modules", "axe-core", "axe.min.js"))
	return string(b), err
})

// axe looks for barriers in the frame's present state.
func (p *tab) axe(state string) {
	p.t.Helper()
	// The frame is transparent, and axe assumes a white page behind it.
	p.frame.do(`document.documentElement.style.backgroundColor = "canvas"`)
	// It is not a page of its own, with landmarks and headings.
	p.frame.axe(state, "region", "landmark-one-main", "page-has-heading-one")
	p.frame.do(`document.documentElement.style.backgroundColor = ""`)
}

// axe runs all rules except some.
func (w *world) axe(state string, but ...string) {
	w.t.Helper()
	source, err := axeScript()
	if err != nil {
		w.t.Skip("axe-core is not installed (npm ci --prefix test)")
	}
	if !eval[bool](w, `"axe" in globalThis`) {
		w.do(`(() => { %s; globalThis.axe = axe; })()`, script(source))
	}
	// Wait for transitions: in the middle of one, colours have no contrast.
	w.wait(`document.getAnimations().every((a) => a.effect.getTiming().iterations === Infinity)`)
	rules := map[string]any{}
	for _, rule := range but {
		rules[rule] = map[string]bool{"enabled": false}
	}
	found := eval[[]struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}](w, `axe.run(document, {iframes: false, resultTypes: ["violations"], rules: %s}).then((r) => r.violations)`, rules)
	for _, v := range found {
		for _, n := range v.Nodes {
			w.t.Errorf("%s: %s (%s): %s\n%s\n%s", state, v.ID, v.Impact, v.Help, n.HTML, n.FailureSummary)
		}
	}
}

// TestAccessible has axe check the states of the component, and saves pictures.
func TestAccessible(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]visit{
		"light":  {},
		"dark":   {},
		"forced": {},
		"narrow": {width: 320},
		"German": {html: `lang="de"`},
		"Arabic": {html: `lang="ar" dir="rtl"`},
		"named":  {attributes: `cardholder-name="required"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newRig(t, nil).ready(v)
			switch name {
			case "light":
				p.world.axe("page")
			case "dark":
				p.media("prefers-color-scheme", "dark")
			case "forced":
				p.media("forced-colors", "active")
			}
			see := func(state string) {
				t.Helper()
				// With errors everything is visible, and colours differ only between light
				// and dark.
				if state == "errors" || name == "light" || name == "dark" {
					p.axe(state)
				}
				p.wantFit(state)
				p.screenshot(name + "-" + state)
			}
			see("empty")
			p.submit()
			p.wantFailure("incomplete", "correct")
			see("errors")
			if name == "named" {
				p.fill("name", "A N Other")
			}
			p.enterCard(visa)
			see("filled")
			p.submit()
			p.await("success")
			see("done")
		})
	}
}

// wantFit checks that no content is cut off, overlaps other content, or must be scrolled to
// within its own frame.
func (p *tab) wantFit(state string) {
	p.t.Helper()
	// The frame grows with its content.
	p.frame.wait(`(() => { const e = document.documentElement; return e.scrollHeight <= innerHeight && e.scrollWidth <= innerWidth; })()`)
	want(&p.world, true, `document.documentElement.scrollWidth <= innerWidth`)
	if s := eval[string](p.frame, `(() => {
		const faults = [];
		const shown = (e) => e.checkVisibility({visibilityProperty: true, opacityProperty: true}) && e.getClientRects().length > 0;
		const name = (e) => e.localName + "#" + e.id + "." + e.className;
		const texts = [...document.querySelectorAll("#card *")].filter((e) => shown(e) &&
			[...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim()));
		// What is there for screen readers alone is as good as invisible.
		const boxes = [...new Set([...texts, ...document.querySelectorAll("input")])].filter((e) => {
			const r = e.getBoundingClientRect();
			return shown(e) && r.width > 2 && r.height > 2;
		});
		for (const e of boxes) {
			const r = e.getBoundingClientRect();
			if (r.left < -.5 || r.top < -.5 || r.right > innerWidth + .5 || r.bottom > innerHeight + .5) faults.push(name(e) + " is outside");
			if (e.localName !== "input" && (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)) faults.push(name(e) + " is cut off");
			for (const other of boxes) {
				if (e === other || e.contains(other) || other.contains(e)) continue;
				const o = other.getBoundingClientRect();
				if (r.left < o.right - 1 && o.left < r.right - 1 && r.top < o.bottom - 1 && o.top < r.bottom - 1) {
					faults.push(name(e) + " lies over " + name(other));
				}
			}
		}
		// What was typed is seen whole, and beside the mark.
		for (const e of document.querySelectorAll("input")) {
			if (shown(e) && e.scrollWidth > e.clientWidth + 1) faults.push(name(e) + " does not show its value");
		}
		return faults.join("; ");
	})()`); s != "" {
		p.t.Errorf("%s: %s", state, s)
	}
}

// TestZoom is for people who need everything twice as large: a window of 640 pixels shows
// 320 at 200 %. Texts may also be larger on their own.
func TestZoom(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{attributes: `cardholder-name="required" lang="de"`, width: 320})
	p.size(320, 2)
	p.enterCard(visa)
	p.wantFit("at 200 %")
	p.submit()
	p.wantFailure("incomplete", "correct")
	p.wantFit("at 200 %, with an error")
	p.screenshot("zoom")
	p.do(`document.documentElement.style.fontSize = "32px"`)
	p.do(`card.style.setProperty("--card-entry-font-size", "32px")`)
	p.frame.wait(`getComputedStyle(document.querySelector("#number")).fontSize === "32px"`)
	p.size(1280, 1)
	p.wantFit("text at 200 %")
	p.screenshot("text")
}

// TestStyle styles the component with custom properties.
func TestStyle(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{})
	p.do(`Object.entries(%s).forEach(([name, value]) => card.style.setProperty("--card-entry-" + name, value))`, map[string]string{
		"font-family": "monospace", "font-size": "20px", "color": "rgb(1, 2, 3)", "background": "rgb(250, 250, 240)", "border-color": "rgb(90, 91, 92)",
		"border-radius": "13px", "accent-color": "rgb(0, 90, 0)", "error-color": "rgb(160, 0, 1)", "label-color": "rgb(3, 4, 5)",
		"placeholder-color": "rgb(80, 81, 82)", "gap": "17px", "padding": "11px",
	})
	p.frame.wait(`getComputedStyle(document.querySelector("#number")).fontFamily === "monospace"`)
	p.submit()
	p.wantFailure("incomplete", "correct")
	for property, value := range map[string]string{"fontSize": "20px", "color": "rgb(1, 2, 3)"} {
		want(p.frame, value, `getComputedStyle(document.querySelector("#number"))[%s]`, property)
	}
	want(p.frame, "rgb(160, 0, 1)", `getComputedStyle(document.querySelector("#number-error")).color`)
	want(p.frame, "rgb(3, 4, 5)", `getComputedStyle(document.querySelector("label")).color`)
	want(p.frame, "rgb(80, 81, 82)", `getComputedStyle(document.querySelector("#number"), "::placeholder").color`)
	// The others are somewhere in the form.
	p.frame.wait(`document.getAnimations().length === 0`)
	used := eval[string](p.frame, `[document.documentElement, document.body, ...document.querySelectorAll("#card, #card *")].flatMap((e) =>
		[null, "::before", "::after"].map((p) => { const s = getComputedStyle(e, p); return [s.cssText, ...Array.from(s, (n) => s.getPropertyValue(n))].join(";"); })).join()`)
	for _, value := range []string{"rgb(250, 250, 240)", "rgb(90, 91, 92)", "13px", "rgb(0, 90, 0)", "17px", "11px"} {
		if !strings.Contains(used, value) {
			t.Errorf("no element is %s", value)
		}
	}
	p.screenshot("styled")
	// An invalid value of such a property does no harm, and cannot be used to inject
	// styles.
	p.do(`["url(https://evil.example/)", "red; } * { color: blue", "expression(alert(1))", "x".repeat(100000)].forEach((value) => card.style.setProperty("--card-entry-color", value))`)
	p.enterCard(visa)
	p.submit()
	p.await("success")
}

// TestColorScheme follows the element's colour scheme, wherever it is set.
func TestColorScheme(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{})
	dark := `(() => { const [r, g, b] = getComputedStyle(document.querySelector("#number")).color.match(/[\d.]+/g).map(Number); return r + g + b > 382; })()`
	want(p.frame, false, dark)
	p.media("prefers-color-scheme", "dark")
	p.frame.wait(dark)
	p.do(`card.setAttribute("color-scheme", "light")`)
	p.frame.wait(`!` + dark)
	p.media("prefers-color-scheme", "light")
	p.do(`card.setAttribute("color-scheme", "dark")`)
	p.frame.wait(dark)
	p.do(`card.removeAttribute("color-scheme")`)
	p.frame.wait(`!` + dark)
}

// TestDirection lays the form out from right to left, and keeps digits as they are.
func TestDirection(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{html: `lang="ar" dir="rtl"`})
	want(p.frame, "rtl", `getComputedStyle(document.querySelector("#card")).direction`)
	want(p.frame, "ltr,ltr,ltr", `["number", "expiry", "code"].map((id) => getComputedStyle(document.getElementById(id)).direction).join()`)
	want(p.frame, true, `document.querySelector("#expiry").getBoundingClientRect().left > document.querySelector("#code").getBoundingClientRect().left`)
	p.enterCard(visa)
	if got := p.value("number"); got != "4111 1100 0000 0005" {
		t.Errorf("number: %s", got)
	}
	p.submit()
	p.wantToken(p.await("success"), "411111******0005")
}

// TestTexts shows the built-in languages and added ones.
func TestTexts(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{html: `lang="de-AT"`})
	label := `document.querySelector("label[for=number]").textContent`
	german := eval[string](p.frame, label)
	want(p.frame, "de", `document.documentElement.lang.slice(0, 2)`)
	p.submit()
	de := p.wantFailure("incomplete", "correct").Message
	error := `document.querySelector("#number-error").textContent`
	germanError := eval[string](p.frame, error)
	p.do(`card.setAttribute("locale", "en-GB")`)
	p.frame.wait(label+` !== %s`, german)
	// Visible messages are translated too.
	p.frame.wait(error+` !== %s`, germanError)
	want(p.frame, "en", `document.documentElement.lang.slice(0, 2)`)
	english := eval[string](p.frame, label)
	p.submit()
	if en := p.wantFailure("incomplete", "correct").Message; en == de {
		t.Errorf("the message in English: %s", en)
	}
	// An unknown language falls back to English.
	p.do(`card.setAttribute("locale", "sv")`)
	p.frame.wait(label+` === %s`, english)

	// One is added; its missing texts are English. Texts are never markup.
	p.do(`customElements.get("card-entry").addTexts("fr", {number: "Numéro <b>de carte</b>"})`)
	p.do(`card.setAttribute("locale", "fr-CA")`)
	p.frame.wait(label+` === %s`, "Numéro <b>de carte</b>")
	want(p.frame, true, `document.querySelector("label[for=expiry]").textContent === "Expiry date"`)
	p.do(`card.texts = {number: "The long one"}`)
	p.frame.wait(label + ` === "The long one"`)
	p.axe("own texts")
	p.enterCard(visa)
	p.keys(kb.Enter)
	p.await("success")
}

// TestReset empties the fields.
func TestReset(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{})
	p.enterCard(visa)
	p.fill("number", "4111\t")
	p.wantError("number", "incomplete")
	p.do(`card.reset()`)
	p.frame.wait(`[...document.querySelectorAll("input")].every((e) => e.value === "") && !document.querySelector("[aria-invalid=true]")`)
	want(p.frame, "", `document.querySelector("#brand").textContent.trim()`)
	p.wait(`!events.findLast((e) => e.type === "change").detail.complete`)
	p.enterCard(visa)
	p.submit()
	p.await("success")
}

// TestTitle names the frame.
func TestTitle(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{before: openRoots})
	frame := eval[struct{ Title, URL, Name, Sandbox, Allow string }](&p.world, `(() => {
		const e = roots[0].querySelector("iframe");
		return {Title: e.title, URL: e.src, Name: e.name};
	})()`)
	if frame.Title == "" || frame.URL != p.rig.base+"/sdk/v1/frame.html?origin="+url.QueryEscape(p.rig.other.origin) || frame.Name != "" {
		b, err := json.Marshal(frame)
		t.Errorf("the frame: %s %v", b, err)
	}
	want(&p.world, true, `card.shadowRoot === null`)
}
