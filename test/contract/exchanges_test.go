package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/webhook"
	"github.com/google/uuid"
)

const (
	transcripts = "../../httpapi/testdata/transcripts"
	shop        = "https://shop.example"
)

// TestExchanges checks the contract and the server against each other: every exchange of
// the transcripts, 20,000 random ones, and each delivery to a webhook. Each part of the
// contract must occur in some exchange.
func TestExchanges(t *testing.T) {
	_, text := httpapi.OpenAPI()
	c := newChecker(t, text)
	t.Run("transcripts", c.testTranscripts)
	t.Run("failures", c.testFailures)

	n := 20_000
	if testing.Short() {
		n = 2_000
	}
	const worlds = 4
	for seed := range uint64(worlds) {
		t.Run(fmt.Sprintf("random/%d", seed), func(t *testing.T) { c.testRandom(t, seed, n/worlds) })
	}
	if !t.Failed() && !testing.Short() {
		t.Run("coverage", c.checkCoverage)
	}
}

func (c *checker) testTranscripts(t *testing.T) {
	for _, file := range transcript.Files(t, transcripts) {
		t.Run(file.Name, func(t *testing.T) {
			file.Play(t, false, func(t *testing.T) *transcript.Setup {
				return &transcript.Setup{
					Stores: []store.Store{memstore.New()},
					Front:  func(t testing.TB, replicas []http.Handler) http.Handler { return c.wrap(t, replicas[0], nil) },
					Sender: c.sender(t),
				}
			})
		})
	}
}

// A sender is the transcripts' sender over HTTP, so that the checker sees its requests.
type sender struct {
	transcript.Sender
	over *webhook.Sender
}

func (c *checker) sender(t testing.TB) sender {
	return sender{over: webhook.New(&webhook.Options{Transport: receiver{c, t}, AllowPrivateTargets: true})}
}

func (s sender) Send(ctx context.Context, d *cardvault.Delivery) (*cardvault.SendResult, error) {
	return s.over.Send(ctx, d)
}

type receiver struct {
	c *checker
	t testing.TB
}

// RoundTrip answers like [transcript.Sender].
func (r receiver) RoundTrip(request *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	r.c.checkDelivery(r.t, request.Header, body)
	result, err := transcript.Sender{}.Send(request.Context(), &cardvault.Delivery{URL: request.URL.String()})
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: result.StatusCode, Header: http.Header{}, Body: http.NoBody}, nil
}

// checkDelivery checks a delivery against the contract of its type.
func (c *checker) checkDelivery(t testing.TB, header http.Header, body []byte) {
	var event map[string]any
	if err := json.Unmarshal(body, &event); err != nil {
		t.Errorf("delivery %s: %v", body, err)
		return
	}
	name, _ := event["event_type"].(string)
	item, ok := c.root["webhooks"].(map[string]any)[name].(map[string]any)
	if !ok {
		t.Errorf("event %s is not documented", name)
		return
	}

	operation := item["post"].(map[string]any)
	media := operation["requestBody"].(map[string]any)["content"].(map[string]any)["application/json"].(map[string]any)
	value, err := unmarshal(body)
	if err == nil {
		err = c.schema(media["schema"].(map[string]any)["$ref"].(string)).Validate(value)
	}
	if err != nil {
		t.Errorf("delivery %s: %v", body, err)
	}
	c.noteValue("", media["schema"], event)

	known := map[string]bool{"Content-Type": true, "User-Agent": true}
	for _, p := range operation["parameters"].([]any) {
		given := c.resolve(p)
		name := http.CanonicalHeaderKey(given["name"].(string))
		known[name] = true
		values := header[name]
		if len(values) == 0 && given["required"] != true {
			continue
		}
		if pointer := p.(map[string]any)["$ref"].(string); len(values) != 1 || c.schema(pointer+"/schema").Validate(values[0]) != nil {
			t.Errorf("delivery has %s %q", name, values)
		}
		c.note("parameter %s of %s", given["name"], operation["operationId"])
	}
	for name := range header {
		if !known[name] {
			t.Errorf("delivery has the header %s, which is not documented", name)
		}
	}
}

// A world is a sandbox vault with objects of every kind, for random requests.
type world struct {
	vault   *cardvault.Vault
	sim     *simnet.Network
	plain   http.Handler
	checked http.Handler
	keys    []string            // API keys; the first has every scope
	pools   map[string][]string // ids, by the first part of their paths
	known   map[string][]string // meaningful values, by member or parameter
}

func vaultOn(t testing.TB, s store.Store, o cardvault.Options) *cardvault.Vault {
	t.Helper()
	keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{7}, cardvault.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	o.Mode, o.Audit = cardvault.Sandbox, new(cardvault.AuditOptions)
	v, err := cardvault.New(t.Context(), s, keys, &o)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func serve(t testing.TB, v *cardvault.Vault, o *httpapi.Options) http.Handler {
	t.Helper()
	if o == nil {
		o = new(httpapi.Options)
	}
	if v.PPANEnabled() {
		to := []forward.Destination{{Name: "psp", URL: "https://psp.example/"}} // requests go elsewhere
		f, err := forward.New(v, to, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		o.Forward = f
	}
	h, err := httpapi.NewHandler(v, o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func newKey(t testing.TB, v *cardvault.Vault, scopes ...cardvault.Scope) string {
	t.Helper()
	k, err := v.CreateAPIKey(t.Context(), "test", scopes, nil)
	if err != nil {
		t.Fatal(err)
	}
	return k.Text.Text()
}

// newWorld returns a world whose background work runs until the test ends.
func (c *checker) newWorld(t *testing.T) *world {
	t.Helper()
	sim, err := simnet.New(t.Context(), memstore.New(), &simnet.Options{ChallengeURL: "https://issuer.example/"})
	if err != nil {
		t.Fatal(err)
	}
	v := vaultOn(t, memstore.New(), cardvault.Options{
		PPAN: transcript.Provider{}, Webhooks: c.sender(t), Network: sim, IDV: sim.IDV(), BIN: new(bins), BaseURL: "https://vault.example",
		Schemes: []card.Scheme{card.VISA, card.Mastercard, card.AmericanExpress, card.Discover, card.DinersClub, card.JCB},
	})
	if _, err := v.UpdateAccount(t.Context(), cardvault.AccountUpdate{ProviderAccounts: []cardvault.ProviderAccount{
		{AID: transcript.PPANHeaders[1], MID: transcript.PPANHeaders[5], PortalID: transcript.PPANHeaders[7]},
	}}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- v.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, v.Close(), sim.Close()); err != nil {
			t.Error(err)
		}
	})

	w := &world{vault: v, sim: sim, pools: map[string][]string{}}
	w.keys = []string{newKey(t, v, cardvault.AllScopes()...), newKey(t, v, cardvault.ScopeTokensRead), newKey(t, v, cardvault.ScopeAPIKeysWrite), "vk_test_no", ""}
	other, err := v.CreateAccount(t.Context(), "other", &cardvault.AccountOptions{ImportApproved: new(false), NetworkTokensActive: new(false)})
	if err != nil {
		t.Fatal(err)
	}
	w.keys = append(w.keys, newKey(t, v.In(other.ID), cardvault.AllScopes()...))

	primary, err := v.PrimaryMerchant(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.RotatePaymentSecret(t.Context(), primary.ID, nil); err != nil {
		t.Fatal(err)
	}
	second, err := v.CreateMerchant(t.Context(), "second", nil)
	if err != nil {
		t.Fatal(err)
	}

	w.pools["merchants"] = []string{second.ID.String()} // the primary one's secret stays
	w.known = map[string][]string{
		"currency_code":       {"EUR", "USD", "JPY"},
		"merchant_id":         {primary.ID.String(), second.ID.String()},
		"business_key":        {"order-1", "order-2", "Größe 3"},
		"import_provider":     {"old-shop"},
		"cardholder_name":     {"Ada Lovelace", "Ada 4242 4242 4242 4242"},
		"url":                 {"https://hook.example/204", "https://hook.example/500", "https://hook.example/410", "https://hook.example/none"},
		"from":                {"2026-11-20", "2026-11-21T00:00:00Z", "2026-11-21T02:00:00+02:00"},
		"to":                  {"2026-11-21", "2026-11-22T00:00:00.5Z", "2026-11-19"},
		"x-provider-aid":      {transcript.PPANHeaders[1]},
		"x-provider-hash":     {transcript.PPANHeaders[3]},
		"x-provider-mid":      {transcript.PPANHeaders[5]},
		"x-provider-portalid": {transcript.PPANHeaders[7]},
		"Idempotency-Key":     {"1", "2", "3", "4", "5", "6", "7", "8"},
		"x-idempotency-key":   {"1", "2"},
		"x-page-origin":       {shop},
	}
	for _, scheme := range []card.Scheme{card.VISA, card.VISA, card.VISA, card.Mastercard, card.AmericanExpress, card.Discover, card.DinersClub, card.JCB, card.UnionPay} {
		for _, code := range []int{0, 1, 2, 10, 11, 12, 13, 14, 15, 20, 21, 30, 31, 32, 33, 34, 35, 36, 37, 40, 41, 42, 43, 44, 45, 50, 51, 60, 61, 70, 71, 80, 81, 82} {
			simnet.ScenarioPAN(scheme, code).Expose(func(digits []byte) {
				w.known["account_number"] = append(w.known["account_number"], string(digits))
			})
		}
	}

	w.plain = serve(t, v, &httpapi.Options{AllowedOrigins: []string{shop, "https://other.example"}, AccountOrigins: func(uuid.UUID) []string { return []string{shop} }})
	w.checked = c.wrap(t, w.plain, w.learn)
	return w
}

// bins returns different data each time.
type bins struct{ asked atomic.Int64 }

func (b *bins) LookupBIN(context.Context, *network.BINRequest) (*network.BIN, error) {
	n := b.asked.Add(1)
	return &network.BIN{
		BankName: "Example Bank", CountryCode: "DE",
		Segment: []string{"business", "consumer", "commercial", "other", ""}[n%5],
		Type:    []string{"credit", "debit", "charge", "prepaid", ""}[n%5],
	}, nil
}

// learn collects the ids in an answer.
func (w *world) learn(x *exchange) {
	var answer struct {
		ID         string
		CardArtURL string `json:"card_art_url"`
		Session    string `json:"session_id"`
		Data       json.RawMessage
	}
	if x.answer.Code != 200 || json.Unmarshal(x.answer.Body.Bytes(), &answer) != nil {
		return
	}
	keep := func(pool, id string) {
		if id == "" {
			return
		}
		if w.pools[pool] = append(w.pools[pool], id); len(w.pools[pool]) > 30 {
			w.pools[pool] = w.pools[pool][1:]
		}
	}

	parts := strings.Split(x.request.URL.Path, "/")
	switch {
	case len(parts) > 3 && parts[3] == "payment-data":
		keep("payment_data_id", answer.ID)
	case len(parts) > 3 && parts[3] == "deliveries":
		var items []struct {
			EventID string `json:"event_id"`
		}
		if json.Unmarshal(answer.Data, &items) == nil {
			for _, item := range items {
				keep("events", item.EventID)
			}
		}
	case parts[1] == "cde-import", parts[1] == "tokens" && x.request.Method != "DELETE" && answer.ID != "":
		keep("tokens", answer.ID)
		keep("art_id", answer.CardArtURL[strings.LastIndex(answer.CardArtURL, "/")+1:])
	case x.request.Method == "POST":
		keep(parts[1], answer.ID)
	}
	keep("sessions", answer.Session)
}

// testRandom sends n random requests. A seed repeats the same requests, except where an
// answer depends on the vault's background work.
func (c *checker) testRandom(t *testing.T, seed uint64, n int) {
	transcript.InBubble(t, func(t *testing.T) {
		w := c.newWorld(t)
		g := &generator{Rand: rand.New(rand.NewPCG(seed, 1)), c: c}
		all, taken, failed := c.operations(), 0, false
		for i := range n {
			r := w.request(t, g, pick(g, all), g.oneIn(2))
			a := r.send(t, w.checked)
			if a.Status < 300 {
				taken++
			}
			if a.Status >= 500 {
				t.Errorf("%s %s %v %.300s: %d %s", r.method, r.target, r.headers, r.body, a.Status, a.Body)
			}
			if t.Failed() && !failed {
				failed = true
				t.Logf("the first complaint is at seed %d, request %d", seed, i)
			}
			if i%20 == 0 {
				time.Sleep(time.Duration(g.IntN(4000)) * time.Millisecond)
				w.happen(t, g)
			}
		}
		if taken < n/4 {
			t.Errorf("of %d requests %d are accepted", n, taken)
		}
	})
}

// happen lets a scheme or a cardholder act.
func (w *world) happen(t testing.TB, g *generator) {
	if tokens := w.pools["tokens"]; len(tokens) > 0 && g.oneIn(2) {
		id, err := uuid.Parse(pick(g, tokens))
		if err != nil {
			t.Fatal(err)
		}
		control := w.sim.Control()
		// Most tokens have no network token, or are deleted.
		_ = pick(g, []func(context.Context, uuid.UUID) error{control.Suspend, control.Resume, control.Delete, control.Invalidate, control.Replace, control.Renew})(t.Context(), id)
	}
	for _, id := range w.pools["sessions"] {
		a := transcript.Send(t, w.plain, "GET", "/sessions/"+id, "")
		var session struct{ Data struct{ URL string } }
		if json.Unmarshal([]byte(a.Body), &session) == nil && session.Data.URL != "" {
			_ = w.sim.Control().EndIdentification(t.Context(), session.Data.URL[len("https://issuer.example/"):], g.oneIn(2))
		}
	}
}

type request struct {
	method, target, body string
	headers              []string
}

func (r *request) send(t testing.TB, h http.Handler, more ...string) *transcript.Answer {
	t.Helper()
	return transcript.Send(t, h, r.method, r.target, r.body, append(more, r.headers...)...)
}

// request returns a random request of an operation, valid by the contract or spoiled.
func (w *world) request(t testing.TB, g *generator, o *operation, spoiled bool) *request {
	r := &request{method: o.method}
	var session string
	g.known = func(name string) (string, bool) {
		switch name {
		case "token_id":
			return w.id(g, "tokens"), true
		case "enc_payload":
			return w.payload(t, g, session), session != ""
		}
		if values := w.known[name]; len(values) > 0 {
			return pick(g, values), true
		}
		return "", false
	}
	parts := strings.Split(o.path, "/")
	for i, part := range parts {
		if strings.HasPrefix(part, "{") {
			pool := strings.Trim(part, "{}")
			if pool == "id" {
				pool = parts[1]
			}
			parts[i] = w.id(g, pool)
			if pool == "sessions" {
				session = parts[i]
			}
		}
	}
	r.target = strings.Join(parts, "/")

	query := url.Values{}
	for _, p := range o.parameters {
		name, required := p["name"].(string), p["required"] == true
		if !required && g.oneIn(2) || p["in"] == "path" {
			continue
		}
		value := g.value(t, name, p["schema"])
		text := fmt.Sprint(value)
		if list, ok := value.([]any); ok {
			text = strings.Trim(strings.Join(strings.Fields(strings.ReplaceAll(fmt.Sprintf("%q", list), `" "`, ",")), " "), `[]"`)
		}
		if p["in"] == "query" {
			query.Set(name, text)
		} else {
			r.headers = append(r.headers, name, text)
		}
	}
	if spoiled && g.oneIn(4) {
		query.Add(pick(g, []string{"limit", "page", "sort", "from", "unknown", "4242424242424242", "scheme", "business_key"}),
			pick(g, []string{"0", "501", "-1", "x", "", " ", "1,", "VISA,,JCB", "created_at", "2023-02-29", "2026-11-21T00:00:60Z", "%00"}))
	}
	if len(query) > 0 {
		r.target += "?" + query.Encode()
	}

	if schema := g.c.requestSchema(o); schema != nil {
		body := g.value(t, "", schema).(map[string]any)
		initiate(body)
		if spoiled && g.oneIn(2) {
			r.body = string(g.spoil(body))
		} else if len(body) > 0 || !g.oneIn(2) {
			r.body = string(encode(body))
		}
	} else if g.oneIn(10) {
		r.body = pick(g, []string{"{}", `{"a":1}`, "null", " "})
	}
	w.finish(g, r, spoiled && g.oneIn(4))
	return r
}

// initiate keeps a rule of payments that the contract has in words: a transaction id belongs
// to the initiator merchant.
func initiate(body map[string]any) {
	if payment, ok := body["payment_data"].(map[string]any); ok {
		initiate(payment)
	}
	if body["network_transaction_id"] != nil {
		body["initiator"] = "merchant"
	}
}

// finish adds an API key to a request. It also spoils its headers, method or target if
// spoiled.
func (w *world) finish(g *generator, r *request, spoiled bool) {
	key := w.keys[0]
	if g.oneIn(15) {
		key = pick(g, w.keys)
	}
	if key != "" {
		r.headers = append(r.headers, "X-Api-Key", key)
	}
	if g.oneIn(8) {
		r.headers = append(r.headers, "Origin", pick(g, []string{shop, "https://other.example", "https://evil.example", "null"}))
	}
	if r.method == "GET" && g.oneIn(10) {
		r.method = "HEAD"
	}
	if !spoiled {
		return
	}

	switch g.IntN(7) {
	case 0:
		r.headers = append(r.headers, "Content-Type", pick(g, []string{"text/plain", "application/json; charset=latin1", "application/json; charset=utf-8", "application/xml"}))
	case 1:
		r.headers = append(r.headers, "X-Api-Version", pick(g, []string{"2.0", "1", "1.0"}))
	case 2:
		r.method = pick(g, []string{"PUT", "DELETE", "PATCH", "POST", "GET", "OPTIONS", "HEAD"})
	case 3:
		r.target = pick(g, []string{r.target + "/", "/" + r.target, strings.Replace(r.target, "/", "/x", 1), "/", strings.Replace(r.target, "s", "%73", 1)})
	case 4:
		r.headers = append(r.headers, "Idempotency-Key", pick(g, []string{"", "é", strings.Repeat("k", 256), "1"}))
	case 5:
		r.headers = append(r.headers, "Content-Encoding", "gzip")
	case 6:
		separator := "?"
		if strings.Contains(r.target, "?") {
			separator = "&"
		}
		r.target += separator + pick(g, []string{"a=%zz", "a=1;b=2", "a=%ff", "limit=1&limit=2"})
	}
}

// id returns an id of a pool, or an unknown id.
func (w *world) id(g *generator, pool string) string {
	if ids := w.pools[pool]; len(ids) > 0 && !g.oneIn(10) {
		id := pick(g, ids)
		if g.oneIn(10) {
			return strings.ToUpper(id)
		}
		return id
	}
	return pick(g, []string{"3d1c4ba9-6f0e-4d0b-8a43-0d2f9ddc2b11", "3d1c4ba96f0e4d0b8a430d2f9ddc2b11", "00000000-0000-0000-0000-000000000000", "x"})
}

// payload returns the body that a browser sends in a session, "" if the session waits for
// none.
func (w *world) payload(t testing.TB, g *generator, session string) string {
	a := transcript.Send(t, w.plain, "GET", "/sessions/"+session, "")
	if a.Status != 200 || !strings.Contains(a.Body, `"jwk"`) {
		return ""
	}
	claims := map[string]any{"account_number": pick(g, w.known["account_number"]), "expiry_month": 1 + g.IntN(12), "expiry_year": 2025 + g.IntN(9), "security_code": "737"}
	if g.oneIn(4) {
		claims["cardholder_name"] = "Ada Lovelace"
	}
	switch g.IntN(12) {
	case 0:
		delete(claims, "security_code")
	case 1:
		claims["account_number"] = "4242424242424241"
	case 2:
		claims["expiry_month"] = 13
	case 3:
		claims["security_code"] = "x"
	}
	return transcript.Encrypt(t, a, string(encode(claims)), strings.ToLower(session))
}
