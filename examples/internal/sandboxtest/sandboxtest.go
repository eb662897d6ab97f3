// Package sandboxtest tries a running sandbox as its clients do.
package sandboxtest

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/examples/internal/sandbox"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/simnet"
)

// A Program uses a sandbox whose credentials it has.
type Program struct{ sandbox.Credentials }

// LastLine ends the last line that a sandbox prints once it answers.
const LastLine = " ./examples/open"

// CardJSON is the body of an import.
const CardJSON = `{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2030}`

// Do makes a request and returns the status and the decoded answer.
func (p *Program) Do(key, method, path, body string) (int, map[string]any, error) {
	r, err := http.NewRequest(method, p.BaseURL+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("X-Api-Key", key)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer w.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(w.Body).Decode(&answer); err != nil && err != io.EOF { // there may be no body
		return 0, nil, err
	}
	return w.StatusCode, answer, nil
}

// Want makes a request whose answer has a status, and returns the answer.
func (p *Program) Want(t *testing.T, status int, key, method, path, body string) map[string]any {
	t.Helper()
	got, answer, err := p.Do(key, method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	if got != status {
		t.Fatalf("%s %s answers %d %v, want %d", method, path, got, answer, status)
	}
	return answer
}

// ImportOnce imports a card under an idempotency key and returns the token's id.
func (p *Program) ImportOnce(key, idempotency string) (string, error) {
	r, err := http.NewRequest("POST", p.BaseURL+"/cde-import", strings.NewReader(CardJSON))
	if err != nil {
		return "", err
	}

	r.Header.Set("X-Api-Key", key)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", idempotency)
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer w.Body.Close()

	var token struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(w.Body).Decode(&token); err != nil {
		return "", err
	}
	if w.StatusCode != http.StatusOK {
		return "", fmt.Errorf("import answers %d", w.StatusCode)
	}
	return token.ID, nil
}

// A Token is one as it is answered.
type Token map[string]any

// ID returns its id.
func (k Token) ID() string { return k["id"].(string) }

// State returns the state of a token in one line, such as "failed declined": the status of
// the network token with the code of its reason, and "invalid" for an invalid token.
func (k Token) State() string {
	s, _ := k["network_token_status"].(string)
	if reason, ok := k["network_token_status_reason"].(map[string]any); ok {
		s += " " + reason["code"].(string)
	}
	if k["status"] == "invalid" {
		s += " invalid"
	}
	return s
}

// Import imports a card of a number with the first account.
func (p *Program) Import(t *testing.T, pan string) Token {
	t.Helper()
	return p.Want(t, 200, p.Accounts[0].APIKey, "POST", "/cde-import",
		`{"account_number":"`+pan+`","expiry_month":12,"expiry_year":2030}`)
}

// Get reads a token of the first account.
func (p *Program) Get(t *testing.T, id string) Token {
	t.Helper()
	return p.Want(t, 200, p.Accounts[0].APIKey, "GET", "/tokens/"+id, "")
}

// Patience limits how long a sandbox may take for pending work: as long as the slowest
// machine needs.
const Patience = 5 * time.Minute

// await calls look ten times a second until it reports success.
func await(t *testing.T, what string, look func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(Patience); !look(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("after %v it does not hold that %s", Patience, what)
		}
	}
}

// Follow reads a token again and again until it is in the last state of a course, and
// returns it. Before that it is in states before the last, in their order. Which of them
// are seen depends on the machine: the simulator does not wait for it. If the last is
// also an earlier one it is the last once it has lasted for longer than the others do.
func (p *Program) Follow(t *testing.T, k Token, course ...string) Token {
	t.Helper()
	last := len(course) - 1
	at, since := 0, time.Now()
	await(t, fmt.Sprintf("token %s ends on the course %q", k.ID(), course), func() bool {
		if k = p.Get(t, k.ID()); k.State() != course[at] {
			next := slices.Index(course[at:], k.State())
			if next < 0 {
				t.Fatalf("is %q, not on the course %q after %d", k.State(), course, at)
			}
			at, since = at+next, time.Now()
		}
		return at == last || course[at] == course[last] && time.Since(since) > 10*step
	})
	return k
}

// Until reads a token until a member has changed.
func (p *Program) Until(t *testing.T, k Token, member string) Token {
	t.Helper()
	now := k
	await(t, fmt.Sprintf("%s is not %v", member, k[member]), func() bool {
		now = p.Get(t, k.ID())
		return now[member] != k[member]
	})
	return now
}

// Becomes reads a token until a member has a value.
func (p *Program) Becomes(t *testing.T, k Token, member string, value any) Token {
	t.Helper()
	await(t, fmt.Sprintf("%s is %v", member, value), func() bool {
		k = p.Get(t, k.ID())
		return k[member] == value
	})
	return k
}

// Provisions asks for a network token.
func (p *Program) Provisions(t *testing.T, id string) Token {
	t.Helper()
	return p.Want(t, 200, p.Accounts[0].APIKey, "POST", "/tokens/"+id+"/provisions", "")
}

// PaymentData asks for a cryptogram and returns the record. If the network has answered
// too late, as a machine that is busy may have it do, it asks again.
func (p *Program) PaymentData(t *testing.T, id string) (r map[string]any) {
	t.Helper()
	await(t, "the network answers in time", func() bool {
		r = p.paymentData(t, id)
		failures := r["failure_details"].([]any)
		return len(failures) != 1 || failures[0].(map[string]any)["code"] != "timeout"
	})
	return r
}

func (p *Program) paymentData(t *testing.T, id string) map[string]any {
	t.Helper()
	r := p.Want(t, 200, p.Accounts[0].APIKey, "POST", "/tokens/"+id+"/payment-data",
		`{"amount":1999,"currency_code":"EUR","reference":"order 7"}`)
	jwe, ok := r["encrypted_authentication_data"].(string)
	failures := r["failure_details"].([]any)
	if success := r["success"].(bool); success != ok || success != (len(failures) == 0) || r["token_id"] != id || ok && jwe == "" {
		t.Fatalf("record %v", r)
	}
	return r
}

// WantFailure checks that there is no cryptogram, and why.
func (p *Program) WantFailure(t *testing.T, id, source, code string, retryable bool) {
	t.Helper()
	ask := p.PaymentData
	if code == "timeout" {
		ask = p.paymentData
	}
	failures := ask(t, id)["failure_details"].([]any)
	if len(failures) != 1 {
		t.Fatalf("failures %v", failures)
	}
	if f := failures[0].(map[string]any); f["source"] != source || f["code"] != code || f["retryable"] != retryable {
		t.Errorf("failure %v, want %s %s, retryable: %v", f, source, code, retryable)
	}
}

// A Credential is what payment data holds.
type Credential struct {
	NetworkToken struct {
		Token string `json:"token"`
		Year  int    `json:"expiry_year"`
		Month int    `json:"expiry_month"`
	} `json:"network_token"`
	Cryptogram string  `json:"cryptogram"`
	ECI        *string `json:"eci"`
}

// WantCredential asks for a cryptogram and opens it, as a Go program does.
func (p *Program) WantCredential(t *testing.T, id string) (c Credential, jwe string) {
	t.Helper()
	r := p.PaymentData(t, id)
	jwe, ok := r["encrypted_authentication_data"].(string)
	if !ok {
		t.Fatalf("no cryptogram: %v", r["failure_details"])
	}
	opened, err := receive.OpenPaymentData(jwe, receive.NewSharedSecret([]byte(p.Accounts[0].PaymentSecret)))
	if err != nil {
		t.Fatal(err)
	}
	opened.Number.Expose(func(digits []byte) { c.NetworkToken.Token = string(digits) })
	opened.Cryptogram.Expose(func(text []byte) { c.Cryptogram = string(text) })
	c.NetworkToken.Year, c.NetworkToken.Month = opened.Expiry.Year, opened.Expiry.Month
	if opened.ECI != "" {
		c.ECI = &opened.ECI
	}
	return c, jwe
}

//go:embed open.mjs
var openScript string

// OpenInNode opens payment data in JavaScript.
func OpenInNode(t *testing.T, jwe, secret string) []byte {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node is not installed")
	}
	in, err := json.Marshal(map[string]string{"jwe": jwe, "secret": secret})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node, "--input-type=module", "-e", openScript)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return out
}

// Art fetches the card art of a token, without an API key.
func (p *Program) Art(t *testing.T, k Token) []byte {
	t.Helper()
	url, _ := k["card_art_url"].(string)
	if !strings.HasPrefix(url, p.BaseURL+"/tokens/card-art/") {
		t.Fatalf("card art is at %q", url)
	}
	w, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	image, err := io.ReadAll(w.Body)
	if err != nil || w.StatusCode != 200 || w.Header.Get("Content-Type") != "image/png" {
		t.Fatalf("card art answers %d %v, %v", w.StatusCode, w.Header, err)
	}
	if _, err := png.Decode(bytes.NewReader(image)); err != nil {
		t.Error(err)
	}
	return image
}

// wantPayments checks art, payments and their list for a token of the VISA card whose
// network token works.
func (p *Program) wantPayments(t *testing.T, k Token, _ time.Time) {
	t.Helper()
	if p.Provisions(t, k.ID()).State() != "active" {
		t.Error("provisions changes a network token that is active")
	}

	p.Art(t, k)
	c, jwe := p.WantCredential(t, k.ID())
	n := c.NetworkToken
	if len(n.Token) != 16 || n.Token[:6] != "489500" || strings.HasSuffix(n.Token, "0005") || n.Year != 2030 || n.Month != 12 {
		t.Error("the network token is not one of VISA's with the expiry of the card")
	}
	if raw, err := base64.StdEncoding.DecodeString(c.Cryptogram); err != nil || len(raw) != 20 {
		t.Errorf("cryptogram of %d bytes, %v", len(raw), err)
	}

	if c.ECI == nil || *c.ECI != "07" {
		t.Error("the ECI is not 07")
	}

	again, _ := p.WantCredential(t, k.ID())
	if again.Cryptogram == c.Cryptogram || again.NetworkToken != n {
		t.Error("the second payment has the cryptogram of the first, or another network token")
	}

	list := p.Want(t, 200, p.Accounts[0].APIKey, "GET", "/tokens/"+k.ID()+"/payment-data?sort=created_at%20asc", "")["data"].([]any)
	list = slices.DeleteFunc(list, func(r any) bool { return r.(map[string]any)["success"] != true }) // the network was late
	if len(list) != 2 || list[0].(map[string]any)["encrypted_authentication_data"] != jwe {
		t.Errorf("%d records are listed, not both that were asked for", len(list))
	}

	plain := OpenInNode(t, jwe, p.Accounts[0].PaymentSecret)
	var inNode Credential
	if err := json.Unmarshal(plain, &inNode); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(inNode, c) {
		t.Error("Node reads another credential than Go")
	}
}

// ObtainPPAN asks for a pseudo card number with the hash of a portal key, and returns the
// status and the answer.
func (p *Program) ObtainPPAN(t *testing.T, id, portalKey string) (status int, answer map[string]any) {
	t.Helper()
	r, err := http.NewRequest("POST", p.BaseURL+"/integrations/provider/obtain-ppan", strings.NewReader(`{"token_id":"`+id+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", p.Accounts[0].APIKey)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Provider-Aid", "22222")
	r.Header.Set("X-Provider-Mid", "11111")
	r.Header.Set("X-Provider-Portalid", "3333333")
	payone.Hash(portalKey, payone.HashParameters{AID: "22222", MID: "11111", PortalID: "3333333", Sandbox: true}).Expose(func(text []byte) {
		r.Header.Set("X-Provider-Hash", string(text))
	})

	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	if w.Header.Get("X-Api-Stability") != "beta" {
		t.Errorf("obtain-ppan has the stability %q", w.Header.Get("X-Api-Stability"))
	}
	if err := json.NewDecoder(w.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, answer
}

// wantReplacement checks the token of the card whose number the scheme replaces. Its network
// token pays all the time, and what needs the number is refused until the card is replaced.
func (p *Program) wantReplacement(t *testing.T, k Token, _ time.Time) {
	t.Helper()
	stale := p.Becomes(t, k, "account_number_stale", true)
	if stale["masked_account_number"] != "411111******4242" || stale["expiry_year"] != 2034.0 {
		t.Errorf("the card is %v %v now", stale["masked_account_number"], stale["expiry_year"])
	}
	p.WantCredential(t, p.Follow(t, stale, "active").ID())
	if status, answer := p.ObtainPPAN(t, k.ID(), simnet.PortalKey); status != 409 || answer["classifier"] != "CARD_DATA_STALE" {
		t.Errorf("obtain-ppan answers %d %v", status, answer)
	}

	now := Token(p.Want(t, 200, p.Accounts[0].APIKey, "POST", "/tokens/"+k.ID()+"/replace",
		`{"account_number":"4111110000000005","expiry_month":12,"expiry_year":2034}`))
	if now.ID() != k.ID() || now["account_number_stale"] != false || now["account_number_last_four"] != "0005" || now["created_at"] != k["created_at"] {
		t.Errorf("the token with its new card is %v", now)
	}
	p.WantCredential(t, p.Follow(t, now, "pending", "active").ID())
	if status, answer := p.ObtainPPAN(t, k.ID(), simnet.PortalKey); status != 200 || answer["status"] != "VALID" {
		t.Errorf("with the new card obtain-ppan answers %d %v", status, answer)
	}
}

// step is between what a scenario does.
const step = 2 * time.Second

// Scenarios checks the course of every test card, in parallel subtests.
func Scenarios(t *testing.T, p *Program) {
	plain := p.Follow(t, p.Import(t, "4242424242424242"), "pending", "active") // its art is drawn now
	took := func(t *testing.T, since time.Time, least time.Duration) {
		t.Helper()
		if d := time.Since(since); d < least {
			t.Errorf("took %v, want at least %v", d, least)
		}
	}

	for _, s := range []struct {
		pan, course string
		more        func(t *testing.T, k Token, imported time.Time)
	}{
		{"4111110000000005", "pending, active", p.wantPayments},

		{"4111110000000013", "pending, active", func(t *testing.T, _ Token, imported time.Time) { took(t, imported, step) }},
		{"4111110000000021", "pending, active", func(t *testing.T, _ Token, imported time.Time) { took(t, imported, step) }},

		{"4111110000000104", "pending, failed card_not_eligible", nil},
		{"4111110000000112", "pending, failed card_not_allowed", nil},
		{"4111110000000120", "pending, failed declined", func(t *testing.T, k Token, _ time.Time) {
			p.WantFailure(t, k.ID(), "scheme", "network_token_failed", false)
			p.Follow(t, p.Provisions(t, k.ID()), "pending", "failed declined")
		}},
		{"4111110000000138", "pending, failed declined", func(t *testing.T, k Token, _ time.Time) {
			p.Follow(t, p.Provisions(t, k.ID()), "pending", "active")
		}},
		{"4111110000000146", "pending, active", nil},
		{"4111110000000153", "pending, failed scheme_unavailable", func(t *testing.T, k Token, _ time.Time) {
			if r := k["network_token_status_reason"].(map[string]any); r["retryable"] != true || r["source"] != "scheme" {
				t.Errorf("reason %v", r)
			}
		}},
		{"4111110000000203", "pending, not_available merchant_not_enrolled", func(t *testing.T, k Token, _ time.Time) {
			p.WantFailure(t, k.ID(), "configuration", "merchant_not_enrolled", false)
			p.Follow(t, p.Provisions(t, k.ID()), "pending", "not_available merchant_not_enrolled")
		}},
		{"4111110000000211", "pending, not_available merchant_not_enrolled", func(t *testing.T, k Token, _ time.Time) {
			p.Follow(t, p.Provisions(t, k.ID()), "pending", "active")
		}},

		{"4111110000000302", "pending, active, inactive suspended_by_issuer", func(t *testing.T, k Token, imported time.Time) {
			took(t, imported, step)
			p.WantFailure(t, k.ID(), "scheme", "network_token_inactive", false)
			refused := p.Want(t, 409, p.Accounts[0].APIKey, "POST", "/tokens/"+k.ID()+"/provisions", "")
			if refused["classifier"] != "NETWORK_TOKEN_STATE_CONFLICT" {
				t.Errorf("provisions answers %v", refused)
			}
		}},
		{"4111110000000310", "pending, active, inactive suspended_by_issuer, active", func(t *testing.T, k Token, imported time.Time) {
			took(t, imported, 2*step)
			p.WantCredential(t, k.ID())
		}},
		{"4111110000000328", "pending, active, deleted deleted_by_issuer", func(t *testing.T, k Token, _ time.Time) {
			p.WantFailure(t, k.ID(), "scheme", "network_token_deleted", false)
		}},
		{"4111110000000336", "pending, active, deleted account_closed invalid", func(t *testing.T, k Token, _ time.Time) {
			if k["invalidated_at"] == nil {
				t.Error("invalidated_at is null")
			}
			p.WantFailure(t, k.ID(), "scheme", "token_invalidated", false)
		}},
		{"4111110000000344", "pending, active", p.wantReplacement},
		{"4111110000000351", "pending, active", func(t *testing.T, k Token, _ time.Time) {
			now := p.Becomes(t, k, "expiry_year", 2033.0)
			if now["masked_account_number"] != k["masked_account_number"] || now.State() != "active" {
				t.Errorf("the card is %v %v now and %s", now["masked_account_number"], now["expiry_year"], now.State())
			}
		}},
		{"4111110000000369", "pending, active", func(t *testing.T, k Token, _ time.Time) {
			before := p.Art(t, plain)
			await(t, "the art has changed", func() bool {
				k = p.Get(t, k.ID())
				return !bytes.Equal(p.Art(t, k), before)
			})
			if k.State() != "active" {
				t.Error("more than the art has changed")
			}
		}},
		{"4111110000000377", "pending, active", func(t *testing.T, k Token, _ time.Time) {
			before, _ := p.WantCredential(t, k.ID()) // a slow machine finds it renewed already
			now := before
			await(t, "the network token is renewed", func() bool {
				now, _ = p.WantCredential(t, k.ID())
				return now.NetworkToken.Year == 2033
			})
			if (now.NetworkToken.Token == before.NetworkToken.Token) != (before.NetworkToken.Year == 2033) {
				t.Error("the network token does not have both another number and another expiry")
			}
			if now := p.Get(t, k.ID()); now["expiry_year"] != 2030.0 || now.State() != "active" {
				t.Error("the card has changed with its network token")
			}
		}},

		{"4111110000000401", "pending, active", func(t *testing.T, k Token, _ time.Time) {
			p.WantFailure(t, k.ID(), "scheme", "cryptogram_declined", false)
		}},
		{"4111110000000419", "pending, active", func(t *testing.T, k Token, _ time.Time) {
			p.WantFailure(t, k.ID(), "configuration", "merchant_not_enrolled", false)
		}},
		{"4111110000000427", "pending, active", func(t *testing.T, k Token, _ time.Time) {
			begin := time.Now()
			p.WantCredential(t, k.ID())
			took(t, begin, step)
		}},
		{"4111110000000435", "pending, active", func(t *testing.T, k Token, _ time.Time) {
			begin := time.Now()
			p.WantFailure(t, k.ID(), "scheme", "timeout", true)
			took(t, begin, sandbox.NetworkTimeout)
		}},
		{"4111110000000443", "pending, active", func(t *testing.T, k Token, _ time.Time) {
			p.WantFailure(t, k.ID(), "scheme", "scheme_unavailable", true)
			p.WantFailure(t, k.ID(), "scheme", "scheme_unavailable", true)
			p.WantCredential(t, k.ID())
		}},
		{"4111110000000450", "pending, active", func(t *testing.T, k Token, _ time.Time) {
			if c, _ := p.WantCredential(t, k.ID()); c.ECI != nil {
				t.Error("there is an ECI")
			}
		}},

		{"4111110000000500", "pending, active", func(t *testing.T, _ Token, imported time.Time) { took(t, imported, step) }},
		{"4111110000000518", "pending, failed timeout", nil},
		// Its notices come after two steps, the last one first, and say nothing that is new.
		// Who asks the network in between, as a slow machine may, hears of the suspension.
		{"4111110000000609", "pending, inactive suspended_by_issuer, active", func(t *testing.T, k Token, _ time.Time) {
			seen := time.Now()
			await(t, "three steps are over", func() bool {
				p.Follow(t, k, "inactive suspended_by_issuer", "active")
				return time.Since(seen) > 3*step
			})
			p.WantCredential(t, k.ID())
		}},
		{"4111110000000617", "pending, active", func(t *testing.T, k Token, imported time.Time) {
			took(t, imported, sandbox.NetworkTimeout)
			p.WantCredential(t, k.ID())
		}},
		{"4111110000000708", "pending, failed card_verification_failed", nil},
		{"4111110000000716", "pending, active", func(t *testing.T, k Token, _ time.Time) {
			if k["supports_device_binding"] != true {
				t.Error("device binding is not supported")
			}
		}},

		{"5555550000000002", "pending, active", func(t *testing.T, k Token, _ time.Time) {
			c, _ := p.WantCredential(t, k.ID())
			if raw, err := base64.StdEncoding.DecodeString(c.Cryptogram); err != nil || len(raw) != 19 || c.ECI == nil || *c.ECI != "06" || c.NetworkToken.Year != 2033 {
				t.Errorf("cryptogram of %d bytes, %v, ECI or expiry not Mastercard's", len(raw), err)
			}
		}},
		{"3566002020360505", "not_available scheme_not_enabled", func(t *testing.T, k Token, _ time.Time) {
			if p.Provisions(t, k.ID()).State() != k.State() {
				t.Error("provisions changes it")
			}
			p.WantFailure(t, k.ID(), "configuration", "scheme_not_enabled", false)
		}},
	} {
		t.Run(s.pan, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			k := p.Follow(t, p.Import(t, s.pan), strings.Split(s.course, ", ")...)
			if s.more != nil {
				s.more(t, k, begin)
			}
		})
	}
}
