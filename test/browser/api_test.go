package browser_test

import "testing"

// TestProperties uses the element like a program that creates it before its script is
// loaded.
func TestProperties(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	first, second := r.newSession(), r.newSession()
	p := r.open(visit{session: first, attributes: `name="token"`, before: `document.addEventListener("readystatechange", () => {
		const e = document.querySelector("card-entry");
		if (e && document.readyState === "interactive") Object.assign(e, {locale: "de", texts: {number: "Nummer"}});
	})`})
	p.await("ready")
	p.enter()
	p.frame.wait(`document.querySelector("label[for=number]").textContent === "Nummer"`)
	want(p.frame, "Gültig bis", `document.querySelector("label[for=expiry]").textContent`)
	want(&p.world, "de", `card.getAttribute("locale")`)
	want(&p.world, first, `card.sessionId`)
	want(&p.world, r.base, `card.baseUrl.replace(/\/$/, "")`)
	want(&p.world, true, `card.form === document.querySelector("#pay") && card.form.elements.token === card`)
	want(&p.world, false, `new FormData(card.form).has("token")`)
	p.enterCard(visa)
	p.submit()
	id := p.await("success").TokenID
	want(&p.world, id, `new FormData(card.form).get("token")`)

	// A new session starts it again.
	p.do(`card.sessionId = %s`, second)
	p.await("ready")
	want(&p.world, second, `card.getAttribute("session-id")`)
	want(&p.world, false, `new FormData(card.form).has("token")`)
	p.frame.wait(`[...document.querySelectorAll("input")].every((e) => e.disabled === (e.id === "name") && e.value === "")`)
	p.enterCard(amex)
	// Resetting the form empties it too.
	p.do(`card.form.reset()`)
	p.frame.wait(`document.querySelector("#number").value === ""`)
	p.enterCard(amex)
	p.submit()
	p.wantToken(p.await("success"), "378282*****0008")
}

// TestNames asks for a cardholder's name, and stops asking, at any time.
func TestNames(t *testing.T) {
	t.Parallel()
	p := newRig(t, nil).ready(visit{})
	shown := func(want string) {
		t.Helper()
		p.frame.wait(`[...document.querySelectorAll("input")].filter((e) => e.checkVisibility()).map((e) => e.id).join() === %s`, want)
	}
	shown("number,expiry,code")
	p.enterCard(visa)
	p.do(`card.setAttribute("cardholder-name", "required")`)
	shown("name,number,expiry,code")
	p.submit()
	p.wantFailure("incomplete", "correct")
	p.frame.wait(`document.activeElement.id === "name"`)
	p.do(`card.setAttribute("cardholder-name", "optional")`)
	p.noError("name")
	shown("name,number,expiry,code")
	p.fill("name", "A N Other")
	p.do(`card.removeAttribute("cardholder-name")`)
	shown("number,expiry,code")
	p.submit()
	d := p.await("success")
	p.wantToken(d, "411111******0005")
	if !p.rig.token(d.TokenID).CardholderName.IsZero() {
		t.Error("an unrequested name was sent")
	}
}

// TestTaken removes the component while the vault has the card.
func TestTaken(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	p := r.ready(visit{})
	p.allow(`net::ERR_ABORTED`)
	p.enterCard(visa)
	r.wire.set(only("POST", hold(nil)))
	p.do(`void (globalThis.promise = card.submit().then(() => "fulfilled", (e) => e.name))`)
	r.wire.await(t, 1, "POST", complete)
	p.do(`card.remove()`)
	want(&p.world, "CardEntryError", `promise`)
	r.wire.set(nil)
	p.read = eval[int](&p.world, `events.length`)
	p.do(`document.querySelector("#pay").prepend(card)`)
	p.await("ready")
	p.enter()
	p.enterCard(visa)
	p.submit()
	p.wantToken(p.await("success"), "411111******0005")
}
