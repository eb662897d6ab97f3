package main

import (
	"bytes"
	"html/template"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/simnet"
)

// scenarios are the test cards that the page shows: decisions, chapter 17.
var scenarios = []struct {
	scenario int
	Course   string
}{
	{0, "active at once, as every card that is not listed"},
	{1, "active after 2 seconds, by a notice"},
	{2, "active after 2 seconds; the notice is lost, polling finds out"},
	{10, "failed: the card is not eligible"},
	{11, "failed: the card is allowed no further tokens"},
	{12, "failed: declined by the issuer"},
	{13, "failed; the next provisions works"},
	{14, "two errors that pass, then active"},
	{15, "errors until retries are used up: failed"},
	{20, "not available: the merchant is not enrolled"},
	{21, "not available; the next provisions works"},
	{30, "active, then suspended"},
	{31, "active, suspended, active again"},
	{32, "active, then deleted by the issuer"},
	{33, "active, then the card is invalidated"},
	{34, "active, then the card gets another number"},
	{35, "active, then the card gets another expiry"},
	{36, "active, then the card gets other art"},
	{37, "active, then the network token gets another number and expiry"},
	{40, "active; payment data is declined by the scheme"},
	{41, "active; payment data is refused by configuration"},
	{42, "active; payment data takes 2 seconds"},
	{43, "active; payment data runs into its deadline"},
	{44, "active; payment data fails twice, then works"},
	{45, "active; payment data without ECI"},
	{50, "active; provisioning takes 2 seconds"},
	{51, "provisioning runs into its deadline, again and again: failed"},
	{60, "active, with notices that come twice and in the wrong order"},
	{61, "active, after the first answer was lost"},
	{70, "failed without identification of the cardholder"},
	{71, "active, and supports device binding"},
	{80, "active; obtain-ppan answers VALID, as for every card that is not listed"},
	{81, "active; obtain-ppan answers INVALID"},
	{82, "active; obtain-ppan answers ERROR"},
}

// page answers with a page for people. Keys and secrets are not on it.
func page(baseURL string) http.HandlerFunc {
	type card struct{ PAN, Course string }
	data := struct {
		BaseURL, PortalKey, Hash string
		Cards                    []card
	}{BaseURL: baseURL, PortalKey: simnet.PortalKey}
	hash := payone.Hash(simnet.PortalKey, payone.HashParameters{AID: "22222", MID: "11111", PortalID: "3333333", Mode: cardvault.Sandbox})
	hash.Expose(func(text []byte) { data.Hash = string(text) })
	for _, s := range scenarios {
		// A test card, and of no use elsewhere.
		simnet.ScenarioPAN(cardvault.SchemeVISA, s.scenario).Expose(func(digits []byte) {
			data.Cards = append(data.Cards, card{string(digits), s.Course})
		})
	}
	var html bytes.Buffer
	if err := pageTemplate.Execute(&html, data); err != nil {
		panic(err) // it is executed with nothing that comes from outside
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if foreign(r.Host) {
			http.Error(w, "The sandbox is not reached under this name.", http.StatusMisdirectedRequest)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(html.Bytes()) // the client is gone if this fails
	}
}

// foreign reports whether a host is a name other than localhost: one that was made
// to lead here, so that a page of somebody else could read this one.
func foreign(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	_, err := netip.ParseAddr(name)
	return err != nil && name != "localhost"
}

var pageTemplate = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Cardvault sandbox</title>
<style>
:root { color-scheme: light dark; font: 1rem/1.6 system-ui, sans-serif; }
body { max-width: 48rem; margin: 4rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; letter-spacing: -.02em; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem; }
code, pre { font: .9em ui-monospace, monospace; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
td { padding: .3rem 1.5rem .3rem 0; vertical-align: top; border-top: 1px solid color-mix(in srgb, currentColor 15%, transparent); }
td:first-child { width: 21rem; white-space: nowrap; }
@media (max-width: 40rem) { td:first-child { width: auto; white-space: normal; } }
</style>
<h1>Cardvault sandbox</h1>
<p>This is a sandbox: use test cards only. The REST surface is at <code>{{.BaseURL}}</code>;
API keys are in <code>sandbox.json</code> in the data directory of the server.</p>

<h2>Tokens</h2>
<table>
<tr><td><code>POST /cde-import</code><td>a card number becomes a token
<tr><td><code>POST /tokens/session</code><td>a session in which a browser enters a card
<tr><td><code>GET /sessions/{id}</code><td>the key to encrypt a card under; no API key
<tr><td><code>POST /sessions/{id}/complete-action</code><td>the encrypted card becomes a token; no API key
<tr><td><code>GET /tokens</code><td>the tokens of the account
<tr><td><code>GET, PATCH, DELETE /tokens/{id}</code><td>one token
</table>

<h2>Network tokens</h2>
<table>
<tr><td><code>POST /tokens/{id}/provisions</code><td>asks again for a network token
<tr><td><code>POST /tokens/{id}/payment-data</code><td>a cryptogram for one payment, encrypted for the merchant
<tr><td><code>GET /tokens/{id}/payment-data</code><td>those that were asked for
<tr><td><code>GET /tokens/card-art/{art_id}</code><td>an image of the card; no API key
</table>

<h2>Security codes</h2>
<table>
<tr><td><code>GET /tokens/{id}/security-code</code><td>whether the vault still has it, and until when
<tr><td><code>POST /tokens/{id}/refresh-session</code><td>a session in which the shopper enters it anew
<tr><td><code>POST /tokens/{id}/consume</code><td>the payment was authorized: it is erased
</table>

<h2>Pseudo card numbers</h2>
<table>
<tr><td><code>POST /integrations/provider/obtain-ppan</code><td>a number for the card at the payment provider (beta)
</table>
<p>The provider of this sandbox has the portal key <code>{{.PortalKey}}</code>. For
<code>x-provider-aid: 22222</code>, <code>x-provider-mid: 11111</code> and
<code>x-provider-portalid: 3333333</code> the <code>x-provider-hash</code> is that of this line, with an API key and a token of yours:</p>
<pre>curl {{.BaseURL}}/integrations/provider/obtain-ppan -H 'x-api-key: …' \
  -H 'x-provider-aid: 22222' -H 'x-provider-mid: 11111' -H 'x-provider-portalid: 3333333' \
  -H 'x-provider-hash: {{.Hash}}' \
  -H 'content-type: application/json' -d '{"token_id":"…"}'</pre>

<h2>API keys</h2>
<table>
<tr><td><code>GET, POST /api-keys</code><td>the keys of the account
<tr><td><code>DELETE /api-keys/{id}</code><td>revokes a key
</table>

<h2>The simulated network</h2>
<p>Each of these does to a stored card what its scheme would, and answers 202.</p>
<table>
<tr><td><code>POST /simulator/tokens/{id}/suspend</code><td>the issuer suspends the network token
<tr><td><code>POST /simulator/tokens/{id}/resume</code><td>and resumes it
<tr><td><code>POST /simulator/tokens/{id}/delete</code><td>deletes it for good
<tr><td><code>POST /simulator/tokens/{id}/invalidate</code><td>invalidates the card
<tr><td><code>POST /simulator/tokens/{id}/replace</code><td>gives the card another number
<tr><td><code>POST /simulator/tokens/{id}/renew</code><td>gives the card another expiry
</table>

<h2>Test cards</h2>
<p>What becomes of the network token of a VISA card. Steps after the first come 2 seconds apart.
Any expiry that is not past will do.</p>
<table>
{{- range .Cards}}
<tr><td><code>{{.PAN}}</code><td>{{.Course}}
{{- end}}
</table>
</html>
`))
