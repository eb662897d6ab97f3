package httpapi_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/google/uuid"
)

// The answers of a network.
const (
	networkPAN = "4895370012003478"
	cryptogram = "AgAAAAAAAIR8CQrXcIhbQAAAAAA="
)

var artImage = append([]byte("\x89PNG\r\n\x1a\n"), bytes.Repeat([]byte("card art "), 8000)...)

// A wrapped is a network.Provider that activates every network token at once. A test may
// run something before its answers.
type wrapped struct {
	provision  func(context.Context) error
	cryptogram func(context.Context) error
	art        string // "" for no art
	reference  string // payment account reference
	eci        string

	last string // id of the last network token
}

var (
	_ network.Provider   = (*wrapped)(nil)
	_ network.ArtFetcher = (*wrapped)(nil)
)

func (n *wrapped) Info() network.Info                         { return network.Info{Name: "test", ArtFetcher: true} }
func (n *wrapped) Eligible(*network.EligibilityRequest) error { return nil }

func (n *wrapped) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	if n.provision != nil {
		if err := n.provision(ctx); err != nil {
			return nil, err
		}
	}
	made := n.token(network.Ref{IdempotencyKey: r.IdempotencyKey})
	n.last = made.ID
	return made, nil
}

func (n *wrapped) token(ref network.Ref) *network.Token {
	return &network.Token{
		ID:                    cmp.Or(ref.ID, "nt:"+ref.IdempotencyKey),
		State:                 network.Active,
		Art:                   n.art,
		SupportsDeviceBinding: true,

		PaymentAccountReference: n.reference,
	}
}

func (n *wrapped) Lookup(_ context.Context, ref network.Ref) (*network.Token, error) {
	return n.token(ref), nil
}

func (n *wrapped) Cryptogram(ctx context.Context, r *network.CryptogramRequest) (*network.Cryptogram, error) {
	if n.cryptogram != nil {
		if err := n.cryptogram(ctx); err != nil {
			return nil, err
		}
	}
	return &network.Cryptogram{
		TokenID: r.Token.ID,
		Number:  card.NewPAN([]byte(networkPAN)),
		Expiry:  card.Expiry{Month: 12, Year: 2030},
		Value:   card.NewCryptogramValue([]byte(cryptogram)),
		ECI:     n.eci,
	}, nil
}

func (n *wrapped) Delete(context.Context, network.Ref) error { return nil }

func (n *wrapped) CardArt(_ context.Context, r *network.ArtRequest) (*network.Art, error) {
	if strings.HasPrefix(r.ID, "jpeg") {
		return &network.Art{MediaType: "image/jpeg", Image: []byte("\xff\xd8\xff" + r.ID)}, nil
	}
	return &network.Art{MediaType: "image/png", Image: artImage}, nil
}

// newNetworkRig returns a rig with a network, and the payment secret of its primary
// merchant.
func newNetworkRig(t testing.TB, n *wrapped, opts *cardvault.Options, http *httpapi.Options) (r *rig, secret string) {
	t.Helper()
	o := cardvault.Options{}
	if opts != nil {
		o = *opts
	}
	o.Network, o.BaseURL = n, "https://vault.example"
	r = newRig(t, &o, http)
	return r, newSecret(t, r.vault)
}

// primaryMerchant returns the id of the primary merchant of v's account.
func primaryMerchant(t testing.TB, v *cardvault.Vault) string {
	t.Helper()
	m, err := v.PrimaryMerchant(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m.ID.String()
}

// newSecret makes a payment secret of that merchant.
func newSecret(t testing.TB, v *cardvault.Vault) string {
	t.Helper()
	secret, err := v.RotatePaymentSecret(t.Context(), parseUUID(t, primaryMerchant(t, v)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return secret.Secret.Text()
}

// activate imports a card and lets the vault provision it.
func (r *rig) activate(t testing.TB) string {
	t.Helper()
	id := r.importCard(t)
	if err := r.vault.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := r.do(t, "GET", "/tokens/"+id, ""); a.member(t, "network_token_status") != "active" {
		t.Fatal(a.body)
	}
	return id
}

const payment = `{"amount":1099,"currency_code":"EUR","reference":"order-1"}`

// paymentTable lists the members of payment data and the forms of their values.
var paymentTable = []struct{ name, form string }{
	{"id", uuidForm},
	{"amount", `\d+`},
	{"currency_code", `"[A-Z]{3}"`},
	{"created_at", timeForm},
	{"encrypted_authentication_data", `"[\w-]+(\.[\w-]+){4}"|null`},
	{"failure_details", `\[(\{"source":"(scheme|configuration)","code":"[a-z_]+","message":".+","retryable":(true|false),"scheme_code":("[^"]+"|null)\})?\]`},
	{"merchant_id", uuidForm},
	{"reference", `"[^"]+"`},
	{"success", `true|false`},
	{"token_id", uuidForm},
	{"initiator", `"customer"|"merchant"`},
	{"network_transaction_id", `"[ -~]+"|null`},
}

// checkPayment checks a record member by member. It must have either the JWE or failure
// details.
func checkPayment(t *testing.T, body string, success bool) {
	t.Helper()
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &members); err != nil {
		t.Fatal(err)
	}
	if len(members) != len(paymentTable) {
		t.Errorf("%d members, not %d: %s", len(members), len(paymentTable), body)
	}
	for _, m := range paymentTable {
		if value, ok := members[m.name]; !ok || !regexp.MustCompile(`^(?:`+m.form+`)$`).Match(value) {
			t.Errorf("%s is %s in %s", m.name, value, body)
		}
	}
	encrypted, details := string(members["encrypted_authentication_data"]) != "null", string(members["failure_details"]) != "[]"
	if got := string(members["success"]); got != strconv.FormatBool(success) || encrypted != success || details == success {
		t.Errorf("success is %s in %s", got, body)
	}
}

func TestPaymentData(t *testing.T) {
	for _, eci := range []string{"07", ""} {
		t.Run("ECI "+eci, func(t *testing.T) {
			n := &wrapped{eci: eci}
			r, secret := newNetworkRig(t, n, nil, nil)
			id := r.activate(t)
			path := "/tokens/" + id + "/payment-data"
			a := r.do(t, "POST", path, `{"amount":0,"currency_code":"JPY","merchant_id":null,"reference":"Größe \"1\" <b>"}`)
			a.want(t, 200)
			checkPayment(t, strings.Replace(a.body, `\"1\"`, `'1'`, 1), true)
			got := a.object(t)
			if got["reference"] != `Größe "1" <b>` || got["amount"] != 0.0 || got["currency_code"] != "JPY" || got["token_id"] != id {
				t.Error(a.body)
			}
			credential, err := receive.OpenPaymentData(a.member(t, "encrypted_authentication_data"), receive.NewSharedSecret([]byte(secret)))
			if err != nil {
				t.Fatal(err)
			}
			credential.Number.Expose(func(digits []byte) {
				if string(digits) != networkPAN {
					t.Error("another number")
				}
			})
			credential.Cryptogram.Expose(func(value []byte) {
				if string(value) != cryptogram {
					t.Error("another cryptogram")
				}
			})
			if credential.ECI != eci || credential.Expiry != (card.Expiry{Month: 12, Year: 2030}) {
				t.Errorf("ECI %q, expiry %v", credential.ECI, credential.Expiry)
			}

			n.cryptogram = func(context.Context) error {
				return &network.Error{Source: network.SourceScheme, Code: "declined", SchemeCode: "05"}
			}
			failed := r.do(t, "POST", path, payment)
			failed.want(t, 200)
			checkPayment(t, failed.body, false)
			want := `"failure_details":[{"source":"scheme","code":"cryptogram_declined","message":"`
			if !strings.Contains(failed.body, want) || !strings.Contains(failed.body, `"retryable":false,"scheme_code":"05"}]`) {
				t.Error(failed.body)
			}

			// All endpoints answer with the same shape.
			list := r.do(t, "GET", path, "")
			if want := `{"data":[` + failed.body + `,` + a.body + `],"pagination":{"current_page":1,"page_size":50,"total_items":2,"total_pages":1}}`; list.body != want {
				t.Errorf("list %s, not %s", list.body, want)
			}
		})
	}
}

// A foreign merchant is answered like an unknown one.
func TestPaymentDataMerchant(t *testing.T) {
	r, _ := newNetworkRig(t, &wrapped{}, nil, nil)
	id := r.activate(t)
	primary, foreign := primaryMerchant(t, r.vault), primaryMerchant(t, r.newAccount(t, nil))
	m, err := r.vault.CreateMerchant(t.Context(), "second", nil)
	if err != nil {
		t.Fatal(err)
	}
	second := m.ID.String()
	pay := func(merchant string) *answer {
		return r.do(t, "POST", "/tokens/"+id+"/payment-data", strings.Replace(payment, "{", `{"merchant_id":`+merchant+`,`, 1))
	}
	for merchant, want := range map[string]string{"null": primary, `"` + primary + `"`: primary, `"` + second + `"`: second} {
		a := pay(merchant)
		a.want(t, 200)
		if a.member(t, "merchant_id") != want {
			t.Errorf("merchant %s: %s", merchant, a.body)
		}
		checkPayment(t, a.body, want == primary)
		if want == second && !strings.Contains(a.body, `"code":"no_encryption_key"`) {
			t.Error(a.body)
		}
	}
	a, b, c := pay(`"`+foreign+`"`), pay(`"`+uuid.NewString()+`"`), pay(`"`+id+`"`)
	a.want(t, 422, "VALIDATION_FAILED")
	if !strings.Contains(a.body, `"field":"merchant_id","code":"unknown_merchant"`) || a.body != b.body || a.body != c.body {
		t.Errorf("%s\n%s\n%s", a.body, b.body, c.body)
	}
	if list := r.do(t, "GET", "/tokens/"+id+"/payment-data", ""); !strings.Contains(list.body, `"total_items":3,`) {
		t.Error(list.body)
	}
}

// A replay returns the first answer, without the JWE if that is not kept.
func TestPaymentDataReplay(t *testing.T) {
	for name, retention := range map[string]time.Duration{"kept": 0, "not kept": cardvault.NoRetention} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			r, _ := newNetworkRig(t, &wrapped{cryptogram: func(context.Context) error { calls++; return nil }},
				&cardvault.Options{PaymentDataRetention: retention}, nil)
			path := "/tokens/" + r.activate(t) + "/payment-data"
			first := r.do(t, "POST", path, payment, "Idempotency-Key", "k")
			first.want(t, 200)
			if first.header["Idempotency-Replayed"] != nil {
				t.Error("the first call is a replay")
			}
			want := first.body
			if retention != 0 {
				want = strings.Replace(want, `"`+first.member(t, "encrypted_authentication_data")+`"`, "null", 1)
			}
			again := r.do(t, "POST", path, payment, "Idempotency-Key", "k")
			again.want(t, 200)
			if again.body != want || again.header.Get("Idempotency-Replayed") != "true" || calls != 1 {
				t.Errorf("%d cryptograms, %v, %s instead of %s", calls, again.header, again.body, want)
			}
			if list := r.do(t, "GET", path, ""); !strings.HasPrefix(list.body, `{"data":[`+want+`],`) {
				t.Error(list.body)
			}
			r.do(t, "POST", path, strings.Replace(payment, "1099", "1", 1), "Idempotency-Key", "k").want(t, 422, "IDEMPOTENCY_KEY_REUSED")
			if calls != 1 {
				t.Errorf("%d cryptograms", calls)
			}
		})
	}
}

// During a call a repetition is answered with 409 and Retry-After.
func TestIdempotencyInProgress(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	r, _ := newNetworkRig(t, &wrapped{cryptogram: func(context.Context) error {
		close(asked)
		<-answer
		return nil
	}}, nil, nil)
	path := "/tokens/" + r.activate(t) + "/payment-data"
	first := make(chan string, 1)
	go func() {
		a := r.do(t, "POST", path, payment, "Idempotency-Key", "k")
		first <- a.body
	}()
	select {
	case <-asked:
	case body := <-first:
		t.Fatalf("answered without the network: %s", body)
	}
	a := r.do(t, "POST", path, payment, "Idempotency-Key", "k")
	checkCommon(t, "POST", a)
	if a.status != 409 || a.member(t, "classifier") != "IDEMPOTENCY_IN_PROGRESS" || a.header.Get("Retry-After") != "1" {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	close(answer)
	body := <-first
	if again := r.do(t, "POST", path, payment, "Idempotency-Key", "k"); again.body != body || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%s instead of %s", again.body, body)
	}
}

// A hanging network cannot delay an answer past its timeout, and the outcome of the call is
// known.
func TestHangingNetwork(t *testing.T) {
	for _, test := range []struct {
		name             string
		network, timeout time.Duration
		after            time.Duration
		status           int
	}{
		{"defaults", 0, 0, 10 * time.Second, 200},
		{"a quick vault", time.Second, 0, time.Second, 200},
		{"a patient vault", 30 * time.Second, 0, 30 * time.Second, 0},
		{"a quick handler", 0, 2 * time.Second, 2 * time.Second, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				hang := func(ctx context.Context) error {
					<-ctx.Done()
					return ctx.Err()
				}
				n := &wrapped{}
				r, _ := newNetworkRig(t, n, &cardvault.Options{NetworkTimeout: test.network}, &httpapi.Options{Timeout: test.timeout})
				id := r.activate(t)
				n.cryptogram, n.provision = hang, hang
				c := serve(t, r.handler)()
				in := bufio.NewReader(c)
				post := func(path, body string) (int, time.Duration) {
					start := time.Now()
					write(t, c, "POST "+path+" HTTP/1.1\r\nHost: x\r\nX-Api-Key: "+r.key+"\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\nContent-Length: "+
						strconv.Itoa(len(body))+"\r\n\r\n"+body)
					status, _ := readAnswer(t, in, "POST")
					return status, time.Since(start)
				}
				status, took := post("/tokens/"+id+"/payment-data", payment)
				if took > test.after || test.status != 0 && status != test.status || status != 200 && status != 503 {
					t.Errorf("status %d after %v", status, took)
				}
				// The outcome is stored, or the call can be repeated at once.
				n.cryptogram = nil
				if status, took := post("/tokens/"+id+"/payment-data", payment); status != 200 || took != 0 {
					t.Errorf("again: status %d after %v", status, took)
				}
				if list := r.do(t, "GET", "/tokens/"+id+"/payment-data", ""); !strings.Contains(list.body, `"total_items":1,`) {
					t.Error(list.body)
				}
				// Imports do not wait for a network.
				if status, took := post("/cde-import", cardBody); status != 200 || took != 0 {
					t.Errorf("import: status %d after %v", status, took)
				}
				if status, took := post("/tokens/"+id+"/provisions", "{}"); status != 200 || took != 0 {
					t.Errorf("provisions: status %d after %v", status, took)
				}
			})
		})
	}
}

// A panic of the network is a failure of the network.
func TestPanickingNetwork(t *testing.T) {
	n := &wrapped{}
	r, _ := newNetworkRig(t, n, nil, nil)
	id := r.activate(t)
	n.cryptogram = func(context.Context) error { panic("card " + secretPAN) }
	r.log.take()
	a := r.do(t, "POST", "/tokens/"+id+"/payment-data", payment)
	a.want(t, 200)
	checkPayment(t, a.body, false)
	if !strings.Contains(a.body, `"code":"scheme_unavailable"`) || !strings.Contains(a.body, `"retryable":true`) {
		t.Error(a.body)
	}
	transcript.NoEcho(t, "a panic of the network", a.body, r.log.take())
}

// checkArt checks an answer that is an image or a 304.
func checkArt(t *testing.T, a *answer, visibility string) (tag string) {
	t.Helper()
	for name, want := range map[string]string{
		"Cache-Control":                visibility + ", max-age=31536000, immutable",
		"Cross-Origin-Resource-Policy": "cross-origin",
		"Content-Security-Policy":      "default-src 'none'",
		"X-Content-Type-Options":       "nosniff",
		"X-Api-Version":                "1.0",
	} {
		if got := a.header[name]; len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	if !isUUID(a.header.Get("X-Request-Id")) || a.header["Access-Control-Allow-Origin"] != nil || a.header["Set-Cookie"] != nil {
		t.Errorf("headers %v", a.header)
	}
	tag = a.header.Get("ETag")
	if !regexp.MustCompile(`^"[0-9a-f]{32}"$`).MatchString(tag) {
		t.Errorf("ETag is %s", tag)
	}
	return tag
}

func isUUID(s string) bool { return uuid.Validate(s) == nil && len(s) == 36 }

// artPath returns the path of the card art of a token.
func (r *rig) artPath(t *testing.T, id string) string {
	t.Helper()
	url := r.do(t, "GET", "/tokens/"+id, "").member(t, "card_art_url")
	path, ok := strings.CutPrefix(url, "https://vault.example")
	if !ok || strings.Contains(url, id) {
		t.Fatalf("card art is at %s", url)
	}
	return path
}

func TestCardArt(t *testing.T) {
	n := &wrapped{art: "png"}
	r, _ := newNetworkRig(t, n, nil, nil)
	id := r.activate(t)
	path := r.artPath(t, id)
	get := func(method string, headers ...string) *answer {
		t.Helper()
		return send(t, r.handler, method, path, "", headers...)
	}
	a := get("GET")
	a.want(t, 200)
	tag := checkArt(t, a, "public")
	if a.body != string(artImage) || a.header.Get("Content-Type") != "image/png" || a.header.Get("Content-Length") != strconv.Itoa(len(artImage)) {
		t.Errorf("%d bytes, %v", len(a.body), a.header)
	}
	if sum := sha256.Sum256(artImage); tag != `"`+hex.EncodeToString(sum[:16])+`"` {
		t.Errorf("ETag %s does not match the content", tag)
	}
	head := get("HEAD")
	head.want(t, 200)
	a.header["X-Request-Id"] = head.header["X-Request-Id"]
	if head.body != "" || headerText(head.header) != headerText(a.header) {
		t.Errorf("HEAD is answered with %d bytes, %v", len(head.body), head.header)
	}
	for value, status := range map[string]int{
		tag:                         304,
		"W/" + tag:                  304,
		"*":                         304,
		`"a", ` + tag + `,"b"`:      304,
		"\t" + tag + " ":            304,
		"":                          200,
		`"a"`:                       200,
		strings.Trim(tag, `"`):      200,
		strings.ToUpper("w/" + tag): 200,
		`"` + tag + `"`:             200,
	} {
		for _, method := range []string{"GET", "HEAD"} {
			a := get(method, "If-None-Match", value)
			a.want(t, status)
			checkArt(t, a, "public")
			if status == 304 && (a.body != "" || a.header["Content-Type"] != nil || a.header["Content-Length"] != nil) {
				t.Errorf("304 with %d bytes, %v", len(a.body), a.header)
			}
		}
	}
	get("GET", "If-None-Match", `"a"`, "If-None-Match", tag).want(t, 304)

	// An API key makes no difference, valid or not.
	for _, key := range []string{r.key, "no", ""} {
		a := get("GET", "X-Api-Key", key)
		a.want(t, 200)
		checkArt(t, a, "public")
	}

	// The same art has one URL; another media type has another.
	if other := r.artPath(t, r.activate(t)); other != path {
		t.Errorf("one image at %s and %s", path, other)
	}
	n.art = "jpeg"
	jpegID := r.activate(t)
	jpeg := r.artPath(t, jpegID)
	a = send(t, r.handler, "GET", jpeg, "")
	a.want(t, 200)
	if got := checkArt(t, a, "public"); a.header.Get("Content-Type") != "image/jpeg" || got == tag || jpeg == path {
		t.Errorf("%s has tag %s and %v", jpeg, got, a.header)
	}

	// Art is deleted with the last token that shows it.
	r.do(t, "DELETE", "/tokens/"+jpegID, "").want(t, 204)
	for _, path := range []string{jpeg, "/tokens/card-art/" + id, "/tokens/card-art/" + uuid.NewString(), "/tokens/card-art/x", "/tokens/card-art/" + uuid.Nil.String(), strings.ToUpper(path[16:])} {
		if !strings.HasPrefix(path, "/") {
			path = "/tokens/card-art" + path
		}
		a := send(t, r.handler, "GET", path, "", "If-None-Match", "*")
		a.want(t, 404, "NOT_FOUND")
		checkCommon(t, "GET", a)
		if extra := extraHeaders(a); len(extra) > 0 {
			t.Errorf("%s: %q", path, extra)
		}
	}
}

// A token shows the network's data on its card.
func TestNetworkTokenMembers(t *testing.T) {
	r, _ := newNetworkRig(t, &wrapped{art: "png"}, nil, nil)
	id := r.importCard(t)
	const absent = "expires_at invalidated_at cardholder_name bank_name segment type country_code business_key import_provider network_token_status_reason payment_account_reference"
	pending := r.do(t, "GET", "/tokens/"+id, "")
	checkToken(t, pending.body, strings.Fields(absent+" card_art_url")...)
	if err := r.vault.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	active := r.do(t, "GET", "/tokens/"+id, "")
	checkToken(t, active.body, strings.Fields(absent)...)
	want := strings.NewReplacer(`"pending"`, `"active"`, `"supports_device_binding":false`, `"supports_device_binding":true`,
		`"card_art_url":null`, `"card_art_url":"`+active.member(t, "card_art_url")+`"`,
		`"updated_at":"`+pending.member(t, "updated_at"), `"updated_at":"`+active.member(t, "updated_at")).Replace(pending.body)
	if active.body != want || pending.member(t, "network_token_status") != "pending" {
		t.Errorf("got %s\nwas %s", active.body, pending.body)
	}
}

// Requests for card art are checked like all others.
func TestCardArtChecks(t *testing.T) {
	r, _ := newNetworkRig(t, &wrapped{art: "png"}, nil, nil)
	path := r.artPath(t, r.activate(t))
	for _, test := range []struct {
		method, query, body string
		headers             []string
		status              int
		classifier          string
	}{
		{"POST", "", "", nil, 405, "METHOD_NOT_ALLOWED"},
		{"DELETE", "", "", nil, 405, "METHOD_NOT_ALLOWED"},
		{"OPTIONS", "", "", nil, 405, "METHOD_NOT_ALLOWED"},
		{"GET", "", "", []string{"X-Api-Version", "2.0"}, 400, "UNSUPPORTED_VERSION"},
		{"GET", "", "{}", []string{"Content-Type", "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"GET", "", strings.Repeat(" ", 64<<10+1), nil, 413, "PAYLOAD_TOO_LARGE"},
		{"GET", "", "[]", nil, 400, "MALFORMED_REQUEST"},
		{"GET", "?a=%zz", "", nil, 400, "MALFORMED_REQUEST"},
		{"GET", "?a=1", "", nil, 422, "VALIDATION_FAILED"},
		{"GET", "", `{"a":1}`, nil, 422, "VALIDATION_FAILED"},
	} {
		a := send(t, r.handler, test.method, path+test.query, test.body, test.headers...)
		a.want(t, test.status, test.classifier)
		checkCommon(t, test.method, a)
	}
	send(t, r.handler, "GET", path, "{}", "X-Api-Version", "1.0").want(t, 200)

	if err := r.vault.Close(); err != nil {
		t.Fatal(err)
	}
	a := send(t, r.handler, "GET", path, "", "If-None-Match", "*")
	a.want(t, 503, "SERVICE_UNAVAILABLE")
	checkCommon(t, "GET", a)
}

func TestCardArtRequiresKey(t *testing.T) {
	r, _ := newNetworkRig(t, &wrapped{art: "png"}, nil, &httpapi.Options{CardArtRequiresKey: true})
	path := r.artPath(t, r.activate(t))
	_, reader := r.newKey(t, r.vault, 0, cardvault.ScopeTokensRead)
	_, writer := r.newKey(t, r.vault, 0, cardvault.ScopeTokensUpdate)
	get := func(headers ...string) *answer {
		t.Helper()
		return send(t, r.handler, "GET", path, "", headers...)
	}
	for name, headers := range map[string][]string{"none": nil, "no key": {"X-Api-Key", "no"}, "two keys": {"X-Api-Key", reader, "X-Api-Key", reader}} {
		a := get(headers...)
		if checkCommon(t, "GET", a); a.status != 401 {
			t.Errorf("%s: status %d", name, a.status)
		}
	}
	a := get("X-Api-Key", writer)
	a.want(t, 403, "INSUFFICIENT_SCOPE")
	checkCommon(t, "GET", a)
	a = get("X-Api-Key", reader)
	a.want(t, 200)
	// A shared cache must not serve art to a client without a key.
	tag := checkArt(t, a, "private")
	if a.body != string(artImage) {
		t.Errorf("%d bytes", len(a.body))
	}
	get("X-Api-Key", reader, "If-None-Match", tag).want(t, 304)
	get("If-None-Match", tag).want(t, 401)
	other, err := r.vault.CreateAccount(t.Context(), "other", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, stranger := r.newKey(t, r.vault.In(other.ID), 0, cardvault.ScopeTokensRead)
	get("X-Api-Key", stranger).want(t, 404, "NOT_FOUND")
}

// Over a socket: a client that waits for the body of a 304 would hang.
func TestCardArtOverSocket(t *testing.T) {
	for _, major := range []int{1, 2} {
		t.Run(fmt.Sprint("HTTP ", major), func(t *testing.T) {
			r, _ := newNetworkRig(t, &wrapped{art: "png"}, nil, nil)
			path := r.artPath(t, r.activate(t))
			s := newServer(t, r.handler, major == 2)
			tag := ""
			for _, test := range []struct {
				method string
				status int
				length int
			}{{"GET", 200, len(artImage)}, {"HEAD", 200, 0}, {"GET", 304, 0}, {"GET", 304, 0}, {"HEAD", 304, 0}} {
				req, err := http.NewRequestWithContext(t.Context(), test.method, s.URL+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				if test.status == 304 {
					req.Header.Set("If-None-Match", tag)
				}
				resp, err := s.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != test.status || len(body) != test.length || resp.ProtoMajor != major {
					t.Errorf("%s: status %d, %d bytes, %v", test.method, resp.StatusCode, len(body), err)
				}
				tag = resp.Header.Get("ETag")
			}
		})
	}
}
