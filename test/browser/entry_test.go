package browser_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/card"
	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// wantToken checks the token that the shop received.
func (p *tab) wantToken(d detail, mask string) {
	p.t.Helper()
	token := p.rig.token(d.TokenID)
	if token.MaskedAccountNumber != mask || token.Expiry != (card.Expiry{Month: 12, Year: 2030}) {
		p.t.Errorf("the token is of %s, valid to %v", token.MaskedAccountNumber, token.Expiry)
	}
	if !p.rig.hasCode(d.TokenID) {
		p.t.Error("the vault has no security code")
	}
}

// TestShops types a card and pays, in shops on the vault's own origin, on another origin of
// its site, and on another site.
func TestShops(t *testing.T) {
	t.Parallel()
	for name, where := range map[string]func(*rig) *shop{
		"own origin":   func(r *rig) *shop { return r.home },
		"other origin": func(r *rig) *shop { return r.other },
		"other site":   func(r *rig) *shop { return r.abroad },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			p := r.open(visit{shop: where(r), attributes: `name="token"`})
			d := p.await("ready")
			if d.Action != "tokenize_card" || d.MaskedAccountNumber != "" || d.Scheme != "" {
				t.Errorf("ready: %+v", d)
			}
			p.enter()
			if outOfProcess := p.frame.ctx != p.ctx; outOfProcess != (where(r) == r.abroad) {
				t.Errorf("frame in another process: %t", outOfProcess)
			}
			p.enterCard(visa)
			p.wait(`events.at(-1).detail.complete`)
			if d := p.last("change"); d.Brand == nil || *d.Brand != "VISA" || len(d.Errors) != 0 {
				t.Errorf("change: %+v", d)
			}
			want(p.frame, "VISA", `document.querySelector("#brand").textContent`)
			want(p.frame, "4111 1100 0000 0005", `document.querySelector("#number").value`)
			p.do(`document.querySelector("#after").click()`)
			d = p.await("success")
			p.wantToken(d, "411111******0005")
			want(&p.world, d.TokenID, `new FormData(document.querySelector("#pay")).get("token")`)
			want(p.frame, true, `[...document.querySelectorAll("input")].every((e) => e.value === "" && e.disabled)`)
			if n := p.count("error"); n != 0 {
				t.Errorf("%d errors", n)
			}
		})
	}
}

// TestIsolatedPage enters a card in a page that is cross-origin isolated.
func TestIsolatedPage(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{shop: r.abroad, isolated: true})
	want(&p.world, true, `crossOriginIsolated`)
	p.enterCard(visa)
	p.submit()
	p.wantToken(p.await("success"), "411111******0005")
}

// TestPaste pastes numbers as people copy them.
func TestPaste(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{})
	for _, test := range []struct{ field, text, value string }{
		{"number", "4111110000000005", "4111 1100 0000 0005"},
		{"number", "4111 1100 0000 0005", "4111 1100 0000 0005"},
		{"number", "  4111-1100-0000-0005\t", "4111 1100 0000 0005"},
		{"number", "4111\u00a01100\u20090000\u20110005", "4111 1100 0000 0005"},
		{"number", "٤١١١ ١١٠٠ ٠٠٠٠ ٠٠٠٥", "4111 1100 0000 0005"},
		{"number", "４１１１１１０００００００００５", "4111 1100 0000 0005"},
		{"number", "378282000000008", "3782 820000 00008"},
		{"expiry", "12/30", "12/30"},
		{"expiry", "12 / 2030", "12/30"},
		{"expiry", "2030-12", "12/30"},
		{"expiry", "122030", "12/30"},
		{"expiry", "1/30", "01/30"},
		{"code", " 737 ", "737"},
	} {
		p.fill(test.field, "")
		p.paste(test.field, test.text)
		p.keys(kb.Tab)
		if got := plain(p.value(test.field)); got != plain(test.value) {
			t.Errorf("%q in %s becomes %q, not %q", test.text, test.field, got, test.value)
		}
		p.noError(test.field)
	}
}

// plain returns the text of a field without the spaces around the slash of an expiry.
func plain(value string) string { return strings.ReplaceAll(value, " / ", "/") }

// TestAutofill fills the form like a browser: with values and events, without keys.
func TestAutofill(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{attributes: `cardholder-name="optional"`})
	fill := func(values map[string]string) {
		t.Helper()
		p.frame.do(`(() => { for (const [id, value] of Object.entries(%s)) {
			const e = document.getElementById(id);
			e.focus();
			e.value = value;
			e.dispatchEvent(new InputEvent("input", {bubbles: true, composed: true, inputType: "insertReplacementText", data: value}));
			e.dispatchEvent(new Event("change", {bubbles: true}));
			e.blur();
		}})()`, values)
	}
	for _, expiry := range []string{"12/2030", "12/30", "2030-12", "1230", "122030"} {
		fill(map[string]string{"number": "4111110000000005", "expiry": expiry, "code": "737", "name": "A N Other"})
		p.wait(`events.at(-1).detail.complete`)
		if got := plain(p.value("expiry")); got != "12/30" {
			t.Errorf("expiry %s is shown as %s", expiry, got)
		}
		fill(map[string]string{"number": "", "expiry": "", "code": "", "name": ""})
		p.wait(`!events.at(-1).detail.complete`)
	}
	fill(map[string]string{"number": "4111110000000005", "expiry": "12/2030", "code": "737", "name": "A N Other"})
	p.submit()
	d := p.await("success")
	p.wantToken(d, "411111******0005")
	if p.rig.token(d.TokenID).CardholderName.IsZero() {
		t.Error("the name is lost")
	}
	for id, token := range map[string]string{"number": "cc-number", "expiry": "cc-exp", "code": "cc-csc", "name": "cc-name"} {
		want(p.frame, token, `document.getElementById(%s).autocomplete`, id)
	}
}

// TestAmericanExpress enters codes of four digits and of three.
func TestAmericanExpress(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"7373", "737"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			p := newRig(t, nil).ready(visit{})
			p.enterCard(entered{amex.number, amex.expiry, code})
			p.wait(`events.at(-1).detail.complete`)
			if d := p.last("change"); d.Brand == nil || *d.Brand != "American Express" {
				t.Errorf("change: %+v", d)
			}
			if got := p.value("number"); got != "3782 820000 00008" {
				t.Errorf("number: %s", got)
			}
			if got := p.value("code"); got != code {
				t.Errorf("code: %s", got)
			}
			p.keys(kb.Enter)
			p.wantToken(p.await("success"), "378282*****0008")
		})
	}
}

// TestCaret edits in the middle of a number.
func TestCaret(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{})
	for _, test := range []struct {
		name, start, keys, value string
		caret                    int
	}{
		{"a digit in a group", "411110000000005", kb.Home + strings.Repeat(kb.ArrowRight, 2) + "1", "4111 1100 0000 0005", 3},
		{"a digit that ends a group", "411110000000005", kb.Home + strings.Repeat(kb.ArrowRight, 3) + "1", "4111 1100 0000 0005", 4},
		{"a digit after a gap", "411110000000005", kb.Home + strings.Repeat(kb.ArrowRight, 5) + "1", "4111 1100 0000 0005", 6},
		{"back over a digit", "4111110000000005", kb.Home + strings.Repeat(kb.ArrowRight, 7) + kb.Backspace, "4111 1000 0000 005", 6},
		{"back over a gap", "4111220000000005", kb.Home + strings.Repeat(kb.ArrowRight, 5) + kb.Backspace, "4112 2000 0000 005", 3},
		{"delete before a gap", "4111220000000005", kb.Home + strings.Repeat(kb.ArrowRight, 4) + kb.Delete, "4111 2000 0000 005", 4},
		{"delete in a group", "4111220000000005", kb.Home + strings.Repeat(kb.ArrowRight, 6) + kb.Delete, "4111 2000 0000 005", 6},
		{"at the end", "411122", "3" + kb.Backspace, "4111 22", 7},
	} {
		p.fill("number", test.start)
		p.keys(test.keys)
		// Beside a gap the caret may be on either side.
		caret := eval[int](p.frame, `document.querySelector("#number").selectionStart`)
		beside := caret == test.caret || strings.Trim(test.value[min(caret, test.caret):max(caret, test.caret)], " ") == ""
		if got := p.value("number"); got != test.value || !beside {
			t.Errorf("%s: %s with the caret at %d, not %s at %d", test.name, got, caret, test.value, test.caret)
		}
	}
}

// TestKeyboard goes through the page by keys alone, with a visible focus.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	for name, where := range map[string]func(*rig) *shop{
		"same process":  func(r *rig) *shop { return r.other },
		"other process": func(r *rig) *shop { return r.abroad },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			p := r.ready(visit{shop: where(r), attributes: `cardholder-name="required"`})
			looks := `JSON.stringify(["name", "number", "expiry", "code"].map((id) => {
				const looks = [];
				for (let e = document.getElementById(id); e.id !== "card"; e = e.parentElement) {
					for (const pseudo of [null, "::before", "::after"]) {
						const s = getComputedStyle(e, pseudo);
						looks.push(s.outline, s.boxShadow, s.borderColor);
					}
				}
				return looks.join();
			}))`
			order := []string{"name", "number", "expiry", "code"}
			rest := eval[string](p.frame, looks)
			p.do(`document.querySelector("#before").focus()`)
			seen := map[string]bool{rest: true}
			for _, field := range order {
				p.keys(kb.Tab)
				p.frame.wait(`document.activeElement.id === %s`, field)
				p.frame.wait(`document.hasFocus()`)
				// Transitions end.
				p.frame.wait(`document.getAnimations().length === 0`)
				now := eval[string](p.frame, looks)
				if seen[now] {
					t.Errorf("the focus on #%s cannot be seen", field)
				}
				seen[now] = true
			}
			p.keys(kb.Tab)
			p.wait(`document.activeElement.id === "after"`)
			for _, field := range slices.Backward(order) {
				p.keys(kb.Tab, chromedp.ModifierShift)
				p.frame.wait(`document.activeElement.id === %s`, field)
			}
			p.keys(kb.Tab, chromedp.ModifierShift)
			p.wait(`document.activeElement.id === "before"`)

			// From the page into the frame, and paid without leaving the keyboard.
			p.keys(kb.Tab + "A N Other" + kb.Tab + visa.number + kb.Tab + visa.expiry + kb.Tab + visa.code + kb.Enter)
			p.wantToken(p.await("success"), "411111******0005")
		})
	}
}

// TestErrors checks every error of every field. It is shown at the field, tied to it and
// announced, reported without values, and gone once corrected.
func TestErrors(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{attributes: `cardholder-name="required"`})
	good := map[string]string{"name": "A N Other", "number": visa.number, "expiry": visa.expiry, "code": visa.code}

	// No field is invalid before anyone has typed.
	want(p.frame, 0, `document.querySelectorAll("[aria-invalid=true]").length`)
	p.submit()
	d := p.await("error")
	if d.ReasonCode != "incomplete" || d.Action != "correct" || d.Message == "" {
		t.Errorf("error: %+v", d)
	}
	p.frame.wait(`document.activeElement.id === "name"`)
	for field := range good {
		p.wantError(field, "required")
	}
	p.fill("name", good["name"])
	p.noError("name")
	p.fill("number", good["number"]) // a code is valid or not for a scheme
	texts := map[string]bool{}
	for _, test := range []struct{ field, text, kind string }{
		{"number", "4111", "incomplete"},
		{"number", "4111110000000006", "invalid"},
		{"number", "411111000000000", "incomplete"},
		{"expiry", "1", "incomplete"},
		{"expiry", "12/3", "incomplete"},
		{"expiry", "0030", "invalid"},
		{"expiry", "0120", "expired"},
		{"code", "7", "incomplete"},
		{"code", "73", "incomplete"},
		{"code", "7373", "invalid"},
		{"name", "4111 1100 0000 0005", "invalid"},
		{"name", "  ", "required"},
	} {
		p.fill(test.field, test.text+kb.Tab)
		p.wantError(test.field, test.kind)
		texts[test.field+test.kind+eval[string](p.frame, `document.getElementById(%s).textContent`, test.field+"-error")] = true
		p.fill(test.field, good[test.field])
		p.noError(test.field)
	}
	if len(texts) != 9 {
		t.Errorf("the texts of 9 errors: %q", slices.Collect(maps.Keys(texts)))
	}
	// An error appears on leaving a field, not during typing.
	p.fill("number", "4111")
	want(p.frame, false, `document.querySelector("#number").matches("[aria-invalid=true]")`)
	// Leaving an empty field is not an error yet.
	p.fill("number", ""+kb.Tab)
	want(p.frame, false, `document.querySelector("#number").matches("[aria-invalid=true]")`)

	p.fill("number", visa.number)
	p.wait(`events.at(-1).detail.complete`)
	p.submit()
	p.await("success")
	if extra := eval[string](&p.world, `JSON.stringify(events.filter((e) => e.type === "change" &&
		(Object.keys(e.detail).sort().join() !== "brand,complete,errors" || /\d/.test(JSON.stringify(e.detail)))))`); extra != "[]" {
		t.Errorf("change events that hold more than they should: %s", extra)
	}
}

// wantError checks how an error of a field is shown and announced.
func (p *tab) wantError(field, kind string) {
	p.t.Helper()
	if kind != "required" { // before the first key there is no change
		p.wait(`events.findLast((e) => e.type === "change").detail.errors[%s] === %s`, field, kind)
	}
	p.frame.wait(`document.getElementById(%s).getAttribute("aria-invalid") === "true"`, field)
	text := eval[string](p.frame, `document.getElementById(%s).textContent.trim()`, field+"-error")
	p.frame.wait(`document.getElementById(%s).checkVisibility({visibilityProperty: true, opacityProperty: true})`, field+"-error")
	want(p.frame, true, `document.getElementById(%s).getAttribute("aria-describedby").split(" ").includes(%s)`, field, field+"-error")
	p.frame.wait(`document.querySelector("#status").textContent.includes(document.getElementById(%s).textContent)`, field+"-error")
	if live := p.accessible("status").live; live != "polite" {
		p.t.Errorf("the status is not a live region: %q", live)
	}
	// The field as assistive technology sees it.
	node := p.accessible(field)
	if text == "" || !strings.Contains(node.description, text) || !node.invalid || node.name == "" {
		p.t.Errorf("%s with error %q is %+v to assistive technology", field, text, node)
	}
}

// noError checks that a field has no error.
func (p *tab) noError(field string) {
	p.t.Helper()
	p.frame.wait(`document.getElementById(%s).getAttribute("aria-invalid") !== "true"`, field)
	p.wait(`!(%s in events.findLast((e) => e.type === "change").detail.errors)`, field)
	p.frame.wait(`(() => { const e = document.getElementById(%s); return e.textContent.trim() === "" || !e.checkVisibility({visibilityProperty: true}); })()`, field+"-error")
	if node := p.accessible(field); node.invalid {
		p.t.Errorf("%s is %+v to assistive technology", field, node)
	}
}

// A node is an element of the frame as assistive technology sees it.
type node struct {
	name, description, live string
	invalid                 bool
}

func (p *tab) accessible(id string) (n node) {
	p.t.Helper()
	object, err := chromedp.Run(p.frame.ctx, chromedp.Evaluate[*runtime.RemoteObject]("document.getElementById('"+id+"')",
		func(e *runtime.EvaluateParams) { e.ContextID = p.frame.context }))
	if err != nil {
		p.t.Fatal(err)
	}
	backend := call(p.frame, dom.DescribeNode, dom.DescribeNodeParams{ObjectID: object.ObjectID}).Node.BackendNodeID
	tree := call(p.frame, accessibility.GetPartialAXTree, accessibility.GetPartialAXTreeParams{BackendNodeID: backend, FetchRelatives: new(false)})
	for _, a := range tree.Nodes {
		if a.Name != nil {
			n.name = string(a.Name.Value)
		}
		if a.Description != nil {
			n.description = string(a.Description.Value)
		}
		for _, property := range a.Properties {
			switch value := strings.Trim(string(property.Value.Value), `"`); property.Name {
			case accessibility.PropertyNameInvalid:
				n.invalid = value == "true"
			case accessibility.PropertyNameLive:
				n.live = value
			}
		}
	}
	return n
}
