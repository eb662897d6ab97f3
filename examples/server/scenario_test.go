package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"image/png"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/simnet"
	"github.com/google/uuid"
)

// A token is one as it is answered.
type token map[string]any

func (k token) id() string { return k["id"].(string) }

// state returns what becomes of a token in one line, such as "failed declined":
// the status of the network token with the code of its reason, and "invalid" of
// an invalid token.
func (k token) state() string {
	s, _ := k["network_token_status"].(string)
	if reason, ok := k["network_token_status_reason"].(map[string]any); ok {
		s += " " + reason["code"].(string)
	}
	if k["status"] == "invalid" {
		s += " invalid"
	}
	return s
}

func (p *process) importCard(t *testing.T, pan string) token {
	t.Helper()
	return p.want(t, 200, p.Accounts[0].APIKey, "POST", "/cde-import",
		`{"account_number":"`+pan+`","expiry_month":12,"expiry_year":2030}`)
}

func (p *process) get(t *testing.T, id string) token {
	t.Helper()
	return p.want(t, 200, p.Accounts[0].APIKey, "GET", "/tokens/"+id, "")
}

// follow reads a token again and again until it has gone through a course of
// states, and no others.
func (p *process) follow(t *testing.T, k token, course ...string) token {
	t.Helper()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	end := time.After(time.Minute)
	for i := 0; ; k = p.get(t, k.id()) {
		state := k.state()
		if state != course[i] && i+1 < len(course) {
			i++
		}
		if state != course[i] {
			t.Fatalf("is %q, not on the course %q after %d", state, course, i)
		}
		if i+1 == len(course) {
			return k
		}
		select {
		case <-look.C:
		case <-end:
			t.Fatalf("is still %q on the course %q", state, course)
		}
	}
}

// until reads a token until a member is no longer what it was.
func (p *process) until(t *testing.T, k token, member string) token {
	t.Helper()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	end := time.After(20 * time.Second)
	for now := k; ; now = p.get(t, k.id()) {
		if now[member] != k[member] {
			return now
		}
		select {
		case <-look.C:
		case <-end:
			t.Fatalf("%s is still %v", member, k[member])
		}
	}
}

func (p *process) provisions(t *testing.T, id string) token {
	t.Helper()
	return p.want(t, 200, p.Accounts[0].APIKey, "POST", "/tokens/"+id+"/provisions", "")
}

// paymentData asks for a cryptogram and returns the record.
func (p *process) paymentData(t *testing.T, id string) map[string]any {
	t.Helper()
	r := p.want(t, 200, p.Accounts[0].APIKey, "POST", "/tokens/"+id+"/payment-data",
		`{"amount":1999,"currency_code":"EUR","reference":"order 7"}`)
	jwe, ok := r["encrypted_authentication_data"].(string)
	failures := r["failure_details"].([]any)
	if success := r["success"].(bool); success != ok || success != (len(failures) == 0) || r["token_id"] != id || ok && jwe == "" {
		t.Fatalf("record %v", r)
	}
	return r
}

// wantFailure checks that there is no cryptogram, and why.
func (p *process) wantFailure(t *testing.T, id, source, code string, retryable bool) {
	t.Helper()
	failures := p.paymentData(t, id)["failure_details"].([]any)
	if len(failures) != 1 {
		t.Fatalf("failures %v", failures)
	}
	if f := failures[0].(map[string]any); f["source"] != source || f["code"] != code || f["retryable"] != retryable {
		t.Errorf("failure %v, want %s %s, retryable: %v", f, source, code, retryable)
	}
}

// A credential is what payment data holds.
type credential struct {
	NetworkToken struct {
		Token string `json:"token"`
		Year  int    `json:"expiry_year"`
		Month int    `json:"expiry_month"`
	} `json:"network_token"`
	Cryptogram string  `json:"cryptogram"`
	ECI        *string `json:"eci"`
}

// wantCredential asks for a cryptogram and opens it, as a Go program does.
func (p *process) wantCredential(t *testing.T, id string) (c credential, jwe string) {
	t.Helper()
	r := p.paymentData(t, id)
	jwe, ok := r["encrypted_authentication_data"].(string)
	if !ok {
		t.Fatalf("no cryptogram: %v", r["failure_details"])
	}
	opened, err := cardvault.OpenPaymentData(jwe, p.Accounts[0].PaymentSecret)
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

// openInNode opens payment data in JavaScript.
func openInNode(t *testing.T, jwe, secret string) []byte {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node is not installed")
	}
	in, err := json.Marshal(map[string]string{"jwe": jwe, "secret": secret})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node, filepath.Join("testdata", "open.mjs"))
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return out
}

// TestVectorInNode opens the vector of decisions, chapter 8.
func TestVectorInNode(t *testing.T) {
	const jwe = "eyJhbGciOiJBMjU2R0NNS1ciLCJlbmMiOiJBMjU2R0NNIiwiaXYiOiJSY0pDbnl2QjV2c3d1anZrIiwidGFnIjoiczY4Y18yQlJ1R2Nid3hmRHFTU21lZyJ9" +
		".VcLwb9ALnoaMhqFK6gYw7xlY6FqdiZhKFaqg5apt3uk.xLUV4q4CWqPGsi4l" +
		".VI5pIlCsfZ9WH73K_GGqVPHghmXZgNWovR6wCOgBJ5OL4HRGtgeBm91b-83e4RXmJf74G5rYRBO83jDl8YIISTcqsDFK8VGP7RxyUEAAFs6s6imJjk02gkV0EMmNk43HtYpWqpguSBsrCCvmaQhmLCWiuessGQ" +
		".SiDVGLeHQMXr8xusq_SV9A"
	const want = `{"network_token":{"token":"4895370000000000","expiry_year":2030,"expiry_month":12},"cryptogram":"AgAAAAAA","eci":null}`
	if got := openInNode(t, jwe, "shared-secret"); string(got) != want {
		t.Errorf("opens to %s", got)
	}
}

// art fetches the card art of a token, without an API key.
func (p *process) art(t *testing.T, k token) []byte {
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

// TestScenarios has every test card of decisions, chapter 17, do what is said there.
func TestScenarios(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	p.follow(t, p.importCard(t, "4242424242424242"), "pending", "active") // its art is drawn now
	took := func(t *testing.T, since time.Time, least time.Duration) {
		t.Helper()
		if d := time.Since(since); d < least {
			t.Errorf("took %v, want at least %v", d, least)
		}
	}
	const step = 2 * time.Second // between what a scenario does
	for _, s := range []struct {
		pan, course string
		more        func(t *testing.T, k token, imported time.Time)
	}{
		{"4111110000000005", "pending, active", func(t *testing.T, k token, _ time.Time) {
			if p.provisions(t, k.id()).state() != "active" {
				t.Error("provisions changes a network token that is active")
			}
			p.art(t, k)
			c, jwe := p.wantCredential(t, k.id())
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
			again, _ := p.wantCredential(t, k.id())
			if again.Cryptogram == c.Cryptogram || again.NetworkToken != n {
				t.Error("the second payment has the cryptogram of the first, or another network token")
			}
			list := p.want(t, 200, p.Accounts[0].APIKey, "GET", "/tokens/"+k.id()+"/payment-data?sort=created_at%20asc", "")["data"].([]any)
			if len(list) != 2 || list[0].(map[string]any)["encrypted_authentication_data"] != jwe {
				t.Errorf("%d records are listed, not both that were asked for", len(list))
			}
			plain := openInNode(t, jwe, p.Accounts[0].PaymentSecret)
			var inNode credential
			if err := json.Unmarshal(plain, &inNode); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(inNode, c) {
				t.Error("Node reads another credential than Go")
			}
		}},
		{"4111110000000013", "pending, active", func(t *testing.T, _ token, imported time.Time) { took(t, imported, step) }},
		{"4111110000000021", "pending, active", func(t *testing.T, _ token, imported time.Time) { took(t, imported, step) }},

		{"4111110000000104", "pending, failed card_not_eligible", nil},
		{"4111110000000112", "pending, failed card_not_allowed", nil},
		{"4111110000000120", "pending, failed declined", func(t *testing.T, k token, _ time.Time) {
			p.wantFailure(t, k.id(), "scheme", "network_token_failed", false)
			p.follow(t, p.provisions(t, k.id()), "pending", "failed declined")
		}},
		{"4111110000000138", "pending, failed declined", func(t *testing.T, k token, _ time.Time) {
			p.follow(t, p.provisions(t, k.id()), "pending", "active")
		}},
		{"4111110000000146", "pending, active", nil},
		{"4111110000000153", "pending, failed scheme_unavailable", func(t *testing.T, k token, _ time.Time) {
			if r := k["network_token_status_reason"].(map[string]any); r["retryable"] != true || r["source"] != "scheme" {
				t.Errorf("reason %v", r)
			}
		}},
		{"4111110000000203", "pending, not_available merchant_not_enrolled", func(t *testing.T, k token, _ time.Time) {
			p.wantFailure(t, k.id(), "configuration", "merchant_not_enrolled", false)
			p.follow(t, p.provisions(t, k.id()), "pending", "not_available merchant_not_enrolled")
		}},
		{"4111110000000211", "pending, not_available merchant_not_enrolled", func(t *testing.T, k token, _ time.Time) {
			p.follow(t, p.provisions(t, k.id()), "pending", "active")
		}},

		{"4111110000000302", "pending, active, inactive suspended_by_issuer", func(t *testing.T, k token, imported time.Time) {
			took(t, imported, step)
			p.wantFailure(t, k.id(), "scheme", "network_token_inactive", false)
			refused := p.want(t, 409, p.Accounts[0].APIKey, "POST", "/tokens/"+k.id()+"/provisions", "")
			if refused["classifier"] != "NETWORK_TOKEN_STATE_CONFLICT" {
				t.Errorf("provisions answers %v", refused)
			}
		}},
		{"4111110000000310", "pending, active, inactive suspended_by_issuer, active", func(t *testing.T, k token, imported time.Time) {
			took(t, imported, 2*step)
			p.wantCredential(t, k.id())
		}},
		{"4111110000000328", "pending, active, deleted deleted_by_issuer", func(t *testing.T, k token, _ time.Time) {
			p.wantFailure(t, k.id(), "scheme", "network_token_deleted", false)
		}},
		{"4111110000000336", "pending, active, deleted account_closed invalid", func(t *testing.T, k token, _ time.Time) {
			if k["invalidated_at"] == nil {
				t.Error("invalidated_at is null")
			}
			p.wantFailure(t, k.id(), "scheme", "token_invalidated", false)
		}},
		{"4111110000000344", "pending, active", func(t *testing.T, k token, _ time.Time) {
			now := p.until(t, k, "account_number_last_four")
			if now["account_number_last_four"] != "4242" || now["masked_account_number"] != "411111******4242" || now["expiry_year"] != 2034.0 {
				t.Errorf("the card is %v %v now", now["masked_account_number"], now["expiry_year"])
			}
			p.wantCredential(t, p.follow(t, now, "active").id())
		}},
		{"4111110000000351", "pending, active", func(t *testing.T, k token, _ time.Time) {
			now := p.until(t, k, "expiry_year")
			if now["expiry_year"] != 2033.0 || now["masked_account_number"] != k["masked_account_number"] || now.state() != "active" {
				t.Errorf("the card is %v %v now and %s", now["masked_account_number"], now["expiry_year"], now.state())
			}
		}},
		{"4111110000000369", "pending, active", func(t *testing.T, k token, _ time.Time) {
			before := p.art(t, k)
			now := p.until(t, k, "card_art_url")
			if bytes.Equal(p.art(t, now), before) || now.state() != "active" {
				t.Error("the art has not changed, or more than that")
			}
		}},
		{"4111110000000377", "pending, active", func(t *testing.T, k token, imported time.Time) {
			before, _ := p.wantCredential(t, k.id())
			if before.NetworkToken.Year != 2030 {
				t.Fatal("this machine is too slow: the network token is renewed already")
			}
			look := time.NewTicker(100 * time.Millisecond)
			defer look.Stop()
			for now := before; now.NetworkToken == before.NetworkToken; now, _ = p.wantCredential(t, k.id()) {
				if <-look.C; time.Since(imported) > 20*time.Second {
					t.Fatal("the network token stays as it is")
				}
			}
			now, _ := p.wantCredential(t, k.id())
			if now.NetworkToken.Token == before.NetworkToken.Token || now.NetworkToken.Year != 2033 {
				t.Error("the network token does not have both another number and another expiry")
			}
			if now := p.get(t, k.id()); now["expiry_year"] != 2030.0 || now.state() != "active" {
				t.Error("the card has changed with its network token")
			}
		}},

		{"4111110000000401", "pending, active", func(t *testing.T, k token, _ time.Time) {
			p.wantFailure(t, k.id(), "scheme", "cryptogram_declined", false)
		}},
		{"4111110000000419", "pending, active", func(t *testing.T, k token, _ time.Time) {
			p.wantFailure(t, k.id(), "configuration", "merchant_not_enrolled", false)
		}},
		{"4111110000000427", "pending, active", func(t *testing.T, k token, _ time.Time) {
			begin := time.Now()
			p.wantCredential(t, k.id())
			took(t, begin, step)
		}},
		{"4111110000000435", "pending, active", func(t *testing.T, k token, _ time.Time) {
			begin := time.Now()
			p.wantFailure(t, k.id(), "scheme", "timeout", true)
			took(t, begin, networkTimeout)
		}},
		{"4111110000000443", "pending, active", func(t *testing.T, k token, _ time.Time) {
			p.wantFailure(t, k.id(), "scheme", "scheme_unavailable", true)
			p.wantFailure(t, k.id(), "scheme", "scheme_unavailable", true)
			p.wantCredential(t, k.id())
		}},
		{"4111110000000450", "pending, active", func(t *testing.T, k token, _ time.Time) {
			if c, _ := p.wantCredential(t, k.id()); c.ECI != nil {
				t.Error("there is an ECI")
			}
		}},

		{"4111110000000500", "pending, active", func(t *testing.T, _ token, imported time.Time) { took(t, imported, step) }},
		{"4111110000000518", "pending, failed timeout", nil},
		{"4111110000000609", "pending, active", func(t *testing.T, k token, imported time.Time) {
			// Its last notice comes after two steps.
			look := time.NewTicker(100 * time.Millisecond)
			defer look.Stop()
			for time.Since(imported) < 3*step {
				<-look.C
				p.follow(t, p.get(t, k.id()), "active")
			}
			p.wantCredential(t, k.id())
		}},
		{"4111110000000617", "pending, active", func(t *testing.T, k token, imported time.Time) {
			took(t, imported, networkTimeout)
			p.wantCredential(t, k.id())
		}},
		{"4111110000000708", "pending, failed card_verification_failed", nil},
		{"4111110000000716", "pending, active", func(t *testing.T, k token, _ time.Time) {
			if k["supports_device_binding"] != true {
				t.Error("device binding is not supported")
			}
		}},

		{"5555550000000002", "pending, active", func(t *testing.T, k token, _ time.Time) {
			c, _ := p.wantCredential(t, k.id())
			if raw, err := base64.StdEncoding.DecodeString(c.Cryptogram); err != nil || len(raw) != 19 || c.ECI == nil || *c.ECI != "06" || c.NetworkToken.Year != 2033 {
				t.Errorf("cryptogram of %d bytes, %v, ECI or expiry not Mastercard's", len(raw), err)
			}
		}},
		{"3566002020360505", "not_available scheme_not_enabled", func(t *testing.T, k token, _ time.Time) {
			if p.provisions(t, k.id()).state() != k.state() {
				t.Error("provisions changes it")
			}
			p.wantFailure(t, k.id(), "configuration", "scheme_not_enabled", false)
		}},
	} {
		t.Run(s.pan, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			k := p.follow(t, p.importCard(t, s.pan), strings.Split(s.course, ", ")...)
			if s.more != nil {
				s.more(t, k, begin)
			}
		})
	}
}

// TestMidTimeline kills the server while network tokens are under way. All of
// them arrive where they would have, and there is one for each card.
func TestMidTimeline(t *testing.T) {
	// Where a card of each number arrives, with its last four digits then.
	courses := map[string]string{
		"4111110000000005": "active 0005",
		"4111110000000013": "active 0013",
		"4111110000000021": "active 0021",
		"4111110000000146": "active 0146",
		"4111110000000302": "inactive suspended_by_issuer 0302",
		"4111110000000310": "active 0310",
		"4111110000000328": "deleted 0328",
		"4111110000000336": "deleted account_closed invalid 0336",
		"4111110000000344": "active 4242",
		"4111110000000500": "active 0500",
		"4111110000000617": "active 0617",
	}
	arrived := func(k token) string {
		state := k.state() + " " + k["account_number_last_four"].(string)
		// By whom it was deleted nobody says to a vault that missed the notice.
		return strings.NewReplacer(" deleted_by_issuer", "", " deleted_by_scheme", "").Replace(state)
	}
	const each = 6
	dir := t.TempDir()
	want := map[string]string{} // by id
	list := func(p *process, query string) []any {
		return p.want(t, 200, p.Accounts[0].APIKey, "GET", "/tokens?limit=500"+query, "")["data"].([]any)
	}
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	// Killed before the vault has any answer, and when it has some.
	for _, answers := range []int{0, each} {
		p := start(t, dir)
		for range each {
			for pan, course := range courses {
				want[p.importCard(t, pan).id()] = course
			}
		}
		for end := time.Now().Add(10 * time.Second); len(list(p, "&network_token_status=active")) < answers; <-look.C {
			if time.Now().After(end) {
				t.Fatal("nothing becomes active")
			}
		}
		p.kill(t)
	}
	p := start(t, dir)

	t.Parallel() // from here on it waits
	states := map[string]string{}
	look.Reset(200 * time.Millisecond)
	// What the killed server had claimed is free again after some time.
	for end := time.Now().Add(45 * time.Second); !reflect.DeepEqual(states, want); <-look.C {
		clear(states)
		for _, k := range list(p, "") {
			states[token(k.(map[string]any)).id()] = arrived(k.(map[string]any))
		}
		if time.Now().After(end) {
			for id, state := range want {
				if states[id] != state {
					t.Errorf("a token is %q, want %q", states[id], state)
				}
			}
			t.Fatalf("%d tokens, want %d", len(states), len(want))
		}
	}
	for id, state := range want {
		if strings.HasPrefix(state, "active") {
			p.wantCredential(t, id)
		}
	}
	p.stop(t)

	network, err := simnet.Open(t.Context(), filepath.Join(dir, "simulator"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	for id, state := range want {
		err := network.Control().Delete(t.Context(), uuid.MustParse(id))
		if had := !strings.HasPrefix(state, "deleted"); (err == nil) != had {
			t.Errorf("deleting a network token that is %q: %v", state, err)
		}
		if err := network.Control().Delete(t.Context(), uuid.MustParse(id)); !errors.Is(err, simnet.ErrUnknownToken) {
			t.Errorf("a token that was %q had more than one network token: %v", state, err)
		}
	}
}

// TestRestricted looks at a token of the account that nothing is activated for.
func TestRestricted(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir)
	p.stop(t)
	id := importInto(t, dir, p.Accounts[1].AccountID)

	p = start(t, dir)
	key, path := p.Accounts[1].APIKey, "/tokens/"+id.String()
	const want = "not_available network_tokens_not_activated"
	if got := token(p.want(t, 200, key, "GET", path, "")).state(); got != want {
		t.Errorf("the token is %q", got)
	}
	if got := token(p.want(t, 200, key, "POST", path+"/provisions", "")).state(); got != want {
		t.Errorf("after provisions the token is %q", got)
	}
	for _, action := range []string{"suspend", "delete"} {
		p.want(t, 409, key, "POST", "/simulator"+path+"/"+action, "")
	}
}

// importInto imports a card without the REST surface, which refuses to.
func importInto(t *testing.T, dir string, account uuid.UUID) uuid.UUID {
	t.Helper()
	keys, err := cardvault.KeyFile(filepath.Join(dir, "keys", "vault.key"), nil)
	if err != nil {
		t.Fatal(err)
	}
	network, err := simnet.Open(t.Context(), filepath.Join(dir, "simulator"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	v, err := cardvault.Open(t.Context(), filepath.Join(dir, "vault"), keys, &cardvault.Options{Mode: cardvault.Sandbox, Network: network})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	k, err := v.In(account).Import(context.Background(), cardvault.Card{
		PAN:    simnet.ScenarioPAN(cardvault.SchemeVISA, 0),
		Expiry: cardvault.Expiry{Month: 12, Year: 2030},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return k.ID
}
