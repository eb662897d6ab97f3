package browser_test

import "github.com/chromedp/chromedp/kb"

// testReference reads the reference in light and dark, wide and narrow, and tries
// operations with the page's cookie. A violation of its policy would be a problem of the
// tab.
func (s *sandbox) testReference() {
	id := s.stored(0)
	p := s.open(1280)
	p.leave("header a[href='/reference']")
	want(&p.world, true, `document.title.includes("reference")`)
	see := func(state string) {
		s.t.Helper()
		p.world.axe(state)
		want(&p.world, true, `document.documentElement.scrollWidth <= innerWidth`)
		p.screenshot(state)
	}
	see("reference")

	// A list fills in the id for other operations.
	const list, read, pay = `form[data-path="/tokens"]`, `form[data-path="/tokens/{id}"][data-method="GET"]`, `form[data-path="/tokens/{id}/payment-data"][data-method="POST"]`
	try := func(form, status string) {
		s.t.Helper()
		if !eval[bool](&p.world, `document.querySelector(%s).closest("details").open`, form) {
			p.click("details:has(> %s) > summary", form)
		}
		p.do(`document.querySelector(%s).querySelector(".outcome").replaceChildren()`, form)
		p.click("%s button", form)
		p.text(form+" .outcome .pill", status)
	}
	p.do(`document.querySelector(%s).elements.limit.value = "1"`, list)
	try(list, "200")
	p.text(list+" .outcome pre", id)
	p.text(list+" .outcome code", "GET /tokens?limit=1")
	want(&p.world, id, `document.querySelector(%s).elements.id.value`, read)
	try(read, "200")
	try(pay, "200")
	p.text(pay+" .outcome pre", "encrypted_authentication_data")

	// A refusal shows the answer, and a missing parameter is asked for first.
	p.do(`document.querySelector(%s).elements.body.value = "{\"amount\":-1}"`, pay)
	p.allow(`422`)
	try(pay, "422")
	p.text(pay+" .outcome pre", "out_of_range")
	p.do(`document.querySelector(%s).elements.id.value = ""`, read)
	p.do(`document.querySelector(%s).querySelector(".outcome").replaceChildren()`, read)
	p.click("%s button", read)
	want(&p.world, true, `document.activeElement === document.querySelector(%s).elements.id`, read)
	want(&p.world, "", `document.querySelector(%s).querySelector(".outcome").textContent`, read)
	p.do(`document.querySelector(%s).elements.id.value = %s`, read, id)
	p.keys(kb.Enter)
	p.text(read+" .outcome .pill", "200")

	s.noSecrets(p)

	// Unfolded, it reads as well.
	p.do(`document.querySelectorAll("section article:nth-of-type(1) details").forEach((d) => { d.open = true; })`)
	p.media("prefers-color-scheme", "dark")
	see("reference-dark")
	p.size(360, 1)
	p.do(`document.querySelectorAll("details").forEach((d) => { d.open = true; })`)
	want(&p.world, true, `document.documentElement.scrollWidth <= innerWidth`)
	p.screenshot("reference-narrow")
}

// noSecrets checks that a page contains no API key and no secret of the sandbox.
func (s *sandbox) noSecrets(p *tab) {
	s.t.Helper()
	for _, a := range s.Accounts {
		for _, secret := range []string{a.APIKey, a.PaymentSecret} {
			want(&p.world, false, `document.documentElement.outerHTML.includes(%s)`, secret)
		}
	}
}
