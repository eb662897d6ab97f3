package httpapi_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/ppan"
	"github.com/google/uuid"
)

const (
	ppanPath  = "/integrations/provider/obtain-ppan"
	ppanHash  = "b1946ac92492d2347c6235b8d2611184e591fd08c7a1f58b"
	pseudoPAN = "9410010000038248746"
)

var ppanHeaders = transcript.PPANHeaders

// A provider is a transcript.Provider that records the cards sent to it. A test may set its
// answer.
type provider struct {
	answer func(context.Context) (*ppan.Answer, error)

	mu   sync.Mutex
	sent []sentCard
}

// A sentCard is a request to the provider, in the clear.
type sentCard struct {
	aid, mid, portalID, hash, pan, code string
	sandbox                             bool
	expiry                              card.Expiry
	wait                                time.Duration // until the deadline
}

var _ ppan.Provider = (*provider)(nil)

func (p *provider) Info() ppan.Info { return ppan.Info{Name: "test"} }

func (p *provider) ObtainPPAN(ctx context.Context, r *ppan.Request) (*ppan.Answer, error) {
	s := sentCard{aid: r.Account.AID, mid: r.Account.MID, portalID: r.Account.PortalID, sandbox: r.Sandbox, expiry: r.Expiry}
	r.Account.Hash.Expose(func(b []byte) { s.hash = string(b) })
	r.PAN.Expose(func(b []byte) { s.pan = string(b) })
	r.SecurityCode.Expose(func(b []byte) { s.code = string(b) })
	if deadline, ok := ctx.Deadline(); ok {
		s.wait = time.Until(deadline)
	}
	p.mu.Lock()
	p.sent = append(p.sent, s)
	p.mu.Unlock()
	if p.answer != nil {
		return p.answer(ctx)
	}
	return transcript.Provider{}.ObtainPPAN(ctx, r)
}

func validPPAN() *ppan.Answer {
	return &ppan.Answer{
		Status: ppan.Valid, PseudoPAN: ppan.NewPseudoPAN([]byte(pseudoPAN)), TruncatedPAN: "424242XXXXXX4242", CardType: "V", CardExpiry: "3104",
	}
}

// take returns the recorded cards and clears them.
func (p *provider) take() []sentCard {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent := p.sent
	p.sent = nil
	return sent
}

// newPPANRig returns a rig whose vault uses p.
func newPPANRig(t testing.TB, p ppan.Provider, http *httpapi.Options) *rig {
	t.Helper()
	return newRig(t, &cardvault.Options{PPAN: p}, http)
}

func tokenBody(id string) string { return `{"token_id":"` + id + `"}` }

// obtain asks for the pseudo card number of a token, with ppanHeaders and more headers.
func (r *rig) obtain(t testing.TB, id string, headers ...string) *answer {
	t.Helper()
	return r.do(t, "POST", ppanPath, tokenBody(id), slices.Concat(ppanHeaders, headers)...)
}

// checkBeta checks the headers of an obtain-ppan answer.
func checkBeta(t testing.TB, method string, a *answer) {
	t.Helper()
	checkCommon(t, method, a)
	if s := a.header["X-Api-Stability"]; len(s) != 1 || s[0] != "beta" {
		t.Errorf("X-Api-Stability is %q of %d %s", s, a.status, a.body)
	}
}

// Fields that the provider omits are omitted.
func TestPPANAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		ppan ppan.Answer
		body string
	}{
		"valid": {*validPPAN(),
			`{"status":"VALID","cardtype":"V","cardexpiredate":"3104","pseudocardpan":"9410010000038248746","truncatedcardpan":"424242XXXXXX4242"}`},
		"valid, no more": {ppan.Answer{Status: ppan.Valid, PseudoPAN: ppan.NewPseudoPAN([]byte("4100000228091881"))},
			`{"status":"VALID","pseudocardpan":"4100000228091881"}`},
		"travel card": {ppan.Answer{Status: ppan.Valid, PseudoPAN: ppan.NewPseudoPAN([]byte(pseudoPAN)), TravelCard: "yes", TravelCardProvider: "Süd & Söhne", TravelCardInvoice: `a "b"`},
			`{"status":"VALID","pseudocardpan":"9410010000038248746","tcdata":"yes","tcprovider":"Süd \u0026 Söhne","tcinvoice":"a \"b\""}`},
		"invalid": {ppan.Answer{Status: ppan.Invalid, ErrorCode: "33", ErrorMessage: "Expiry date invalid", CustomerMessage: "Bitte prüfen."},
			`{"status":"INVALID","errorcode":"33","errormessage":"Expiry date invalid","customermessage":"Bitte prüfen."}`},
		"invalid, no more": {ppan.Answer{Status: ppan.Invalid}, `{"status":"INVALID"}`},
		"error":            {ppan.Answer{Status: ppan.Error, ErrorCode: "2006"}, `{"status":"ERROR","errorcode":"2006"}`},
	} {
		t.Run(name, func(t *testing.T) {
			p := &provider{answer: func(context.Context) (*ppan.Answer, error) { return &test.ppan, nil }}
			r := newPPANRig(t, p, nil)
			a := r.obtain(t, r.importCard(t))
			a.want(t, 200)
			checkBeta(t, "POST", a)
			if a.body != test.body {
				t.Errorf("%s\nwant %s", a.body, test.body)
			}
		})
	}
}

// The provider is sent the card, the account and, while the vault has it, the security
// code. Sending does not consume the code.
func TestPPANRequest(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := &provider{}
		r := newPPANRig(t, p, nil)
		a := r.do(t, "POST", "/cde-import", strings.Replace(cardBody, "{", `{"security_code":"9137",`, 1))
		a.want(t, 200)
		id := a.member(t, "id")
		want := sentCard{
			aid: "10002", mid: "10001", portalID: "2000002", hash: ppanHash, pan: pan, code: "9137",
			sandbox: true, expiry: card.Expiry{Month: 4, Year: 2031}, wait: 10 * time.Second,
		}
		check := func() {
			t.Helper()
			r.obtain(t, id).want(t, 200)
			if sent := p.take(); len(sent) != 1 || sent[0] != want {
				t.Errorf("sent %+v, not %+v", sent, want)
			}
		}
		check()
		check()
		r.wantCode(t, id, "2026-11-21T00:10:00.000000Z")
		r.do(t, "PATCH", "/tokens/"+id, `{"expiry_month":12,"expiry_year":2040}`).want(t, 200)
		want.expiry = card.Expiry{Month: 12, Year: 2040}
		check()
		r.do(t, "POST", "/tokens/"+id+"/consume", "").want(t, 204)
		want.code = ""
		check()
	})
}

// One answer reports all violations, and the provider is sent nothing.
func TestPPANHeaders(t *testing.T) {
	p := &provider{}
	r := newPPANRig(t, p, nil)
	id := r.importCard(t)
	names := []string{"aid", "hash", "mid", "portalid"}
	for name, test := range map[string]struct {
		values []string
		code   string // "" if valid
	}{
		"missing":          {nil, "required"},
		"empty":            {[]string{""}, "empty_string"},
		"repeated":         {[]string{"1", "1"}, "duplicate_parameter"},
		"repeated, empty":  {[]string{"", ""}, "duplicate_parameter"},
		"256 long":         {[]string{strings.Repeat("x", 256)}, "too_long"},
		"tab":              {[]string{"a\tb"}, "invalid_format"},
		"control":          {[]string{"a\x01b"}, "invalid_format"},
		"delete":           {[]string{"a\x7fb"}, "invalid_format"},
		"non-ASCII":        {[]string{"é"}, "invalid_format"},
		"invalid UTF-8":    {[]string{"a\xff"}, "invalid_format"},
		"255 long":         {[]string{strings.Repeat("~", 255)}, ""},
		"one character":    {[]string{"!"}, ""},
		"blanks in it":     {[]string{"a b"}, ""},
		"a list in itself": {[]string{"a, b"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			// net/http refuses most control characters. A proxy in front of the handler may
			// not.
			do := func(target, body string, bad ...string) *answer {
				req := httptest.NewRequest("POST", target, strings.NewReader(body))
				req.Header.Set("X-Api-Key", r.key)
				req.Header.Set("Content-Type", "application/json")
				for i, n := range names {
					values := ppanHeaders[2*i+1 : 2*i+2]
					if slices.Contains(bad, n) {
						values = test.values
					}
					for _, v := range values {
						req.Header.Add("X-Provider-"+n, v)
					}
				}
				w := httptest.NewRecorder()
				r.handler.ServeHTTP(w, req)
				return &answer{w.Code, w.Header(), w.Body.String()}
			}
			for _, n := range names {
				if _, err := r.vault.UpdateAccount(t.Context(), cardvault.AccountUpdate{ProviderAccounts: []cardvault.ProviderAccount{}}); err != nil {
					t.Fatal(err)
				}
				a := do(ppanPath, tokenBody(id), n)
				checkBeta(t, "POST", a)
				if test.code == "" {
					a.want(t, 200)
					continue
				}
				a.want(t, 422, "VALIDATION_FAILED")
				if got := violations(t, a); fmt.Sprint(got) != fmt.Sprint(map[string]string{"header.x-provider-" + n: test.code}) {
					t.Errorf("%s: %s", n, a.body)
				}
			}
			sent := len(p.take())
			if test.code == "" {
				if sent != len(names) {
					t.Errorf("%d requests", sent)
				}
				return
			}
			a := do(ppanPath+"?a=b", `{"token_id":7,"b":1}`, names...)
			a.want(t, 422, "VALIDATION_FAILED")
			want := map[string]string{"token_id": "wrong_type", "b": "unknown_field", "query.a": "unknown_parameter"}
			for _, n := range names {
				want["header.x-provider-"+n] = test.code
			}
			if got := violations(t, a); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%v, not %v", got, want)
			}
			for _, v := range test.values {
				if len(v) > 1 && strings.Contains(a.body, v) {
					t.Errorf("a value is repeated: %s", a.body)
				}
			}
			if sent += len(p.take()); sent > 0 {
				t.Errorf("%d requests", sent)
			}
		})
	}
}

// A card is sent only to provider accounts named by the operator, or to the first that a
// sandbox meets.
func TestPPANAccount(t *testing.T) {
	p := &provider{}
	r := newPPANRig(t, p, &httpapi.Options{ProviderName: "acme"})
	id := r.importCard(t)
	ask := func(aid string) *answer {
		t.Helper()
		headers := []string{"X-Acme-Aid", aid, "X-Acme-Hash", ppanHash, "X-Acme-Mid", "2", "X-Acme-Portalid", "3"}
		return r.do(t, "POST", "/integrations/acme/obtain-ppan", tokenBody(id), headers...)
	}
	ask("OWN").want(t, 200)
	ask("OWN").want(t, 200)
	p.take()
	a := ask("ATTACKER")
	checkBeta(t, "POST", a)
	a.want(t, 403, "INTEGRATION_NOT_ENABLED")
	if got := a.member(t, "message"); got != "The provider integration is not enabled for the account that x-acme-aid, x-acme-mid and x-acme-portalid name." {
		t.Error(got)
	}
	if sent := p.take(); len(sent) != 0 {
		t.Errorf("%d cards were sent to the provider", len(sent))
	}
	if _, err := r.vault.UpdateAccount(t.Context(), cardvault.AccountUpdate{ProviderAccounts: []cardvault.ProviderAccount{{AID: "OTHER", MID: "2", PortalID: "3"}}}); err != nil {
		t.Fatal(err)
	}
	ask("OWN").want(t, 403, "INTEGRATION_NOT_ENABLED")
	ask("OTHER").want(t, 200)
}

// violations returns the code of each violated field.
func violations(t *testing.T, a *answer) map[string]string {
	t.Helper()
	codes := map[string]string{}
	list, _ := a.object(t)["validation_errors"].([]any)
	for _, v := range list {
		m := v.(map[string]any)
		codes[m["field"].(string)] = m["code"].(string)
	}
	if len(codes) != len(list) {
		t.Errorf("a field is reported twice: %s", a.body)
	}
	return codes
}

// Every answer of the path is marked as beta, errors included.
func TestPPANIsBeta(t *testing.T) {
	p := &provider{}
	r := newPPANRig(t, p, nil)
	id := r.importCard(t)
	_, unscoped := r.newKey(t, r.vault, 0, cardvault.ScopeTokensRead)
	limited := newHandler(t, r.vault, &httpapi.Options{RateLimit: httpapi.RateLimit{PerSecond: 1e-6}})
	send(t, limited, "GET", "/tokens", "", "X-Api-Key", r.key)
	closed := r.open(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		status       int
		classifier   string
		handler      http.Handler // nil means the rig's
		method, body string       // "" means POST, with the token
		headers      []string
		err          error // of the provider
	}{
		{status: 200},
		{status: 401, classifier: "UNAUTHORIZED", headers: []string{"X-Api-Key", "no"}},
		{status: 429, classifier: "RATE_LIMITED", handler: limited},
		{status: 400, classifier: "UNSUPPORTED_VERSION", headers: []string{"X-Api-Version", "2"}},
		{status: 403, classifier: "INSUFFICIENT_SCOPE", headers: []string{"X-Api-Key", unscoped}},
		{status: 400, classifier: "MALFORMED_REQUEST", body: "{"},
		{status: 405, classifier: "METHOD_NOT_ALLOWED", method: "GET"},
		{status: 405, method: "HEAD"},
		{status: 413, classifier: "PAYLOAD_TOO_LARGE", body: strings.Repeat(" ", 64<<10+1)},
		{status: 415, classifier: "UNSUPPORTED_MEDIA_TYPE", headers: []string{"Content-Type", "text/plain"}},
		{status: 404, classifier: "NOT_FOUND", body: tokenBody(uuid.NewString())},
		{status: 422, classifier: "VALIDATION_FAILED", body: "{}"},
		{status: 502, classifier: "PROVIDER_UNAVAILABLE", err: errors.New("no")},
		{status: 503, classifier: "SERVICE_UNAVAILABLE", handler: newHandler(t, closed, &httpapi.Options{Authenticator: httpapi.APIKeys(r.vault)})},
		{status: 504, classifier: "PROVIDER_TIMEOUT", err: context.DeadlineExceeded},
	} {
		p.answer = nil
		if test.err != nil {
			p.answer = func(context.Context) (*ppan.Answer, error) { return nil, test.err }
		}
		h := test.handler
		if h == nil {
			h = r.handler
		}
		headers := slices.Concat(ppanHeaders, test.headers)
		if !slices.Contains(headers, "X-Api-Key") {
			headers = append(headers, "X-Api-Key", r.key)
		}
		method := cmp.Or(test.method, "POST")
		a := send(t, h, method, ppanPath, cmp.Or(test.body, tokenBody(id)), headers...)
		checkBeta(t, method, a)
		if a.want(t, test.status); test.classifier != "" {
			a.want(t, test.status, test.classifier)
		}
	}
	// No other path is marked.
	for _, path := range []string{"/tokens", "/integrations/provider", ppanPath + "/", "/integrations/other/obtain-ppan"} {
		if a := r.do(t, "POST", path, ""); a.header["X-Api-Stability"] != nil {
			t.Errorf("%s is beta", path)
		}
	}
}

// Without a provider every request is answered with INTEGRATION_NOT_ENABLED.
// TestOrderOfChecks tests its place in the order of checks.
func TestPPANNotEnabled(t *testing.T) {
	r := newRig(t, nil, &httpapi.Options{ProviderName: "acme"})
	id := r.importCard(t)
	for _, path := range []string{ppanPath, "/integrations/acme/obtain-ppan"} {
		for _, body := range []string{tokenBody(id), tokenBody(uuid.NewString()), "", "{", strings.Repeat(" ", 65<<10)} {
			a := r.do(t, "POST", path, body)
			a.want(t, 403, "INTEGRATION_NOT_ENABLED")
			checkBeta(t, "POST", a)
		}
	}
}

// A token of another account is answered like an unknown one, byte for byte.
func TestPPANTenants(t *testing.T) {
	p := &provider{}
	r := newPPANRig(t, p, nil)
	other := r.newAccount(t, nil)
	theirs, err := other.Import(t.Context(), cardvault.Card{PAN: card.NewPAN([]byte(pan)), Expiry: card.Expiry{Month: 4, Year: 2031}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	deleted := r.importCard(t)
	r.do(t, "DELETE", "/tokens/"+deleted, "").want(t, 204)
	_, key := r.newKey(t, other, 0, cardvault.ScopePPANCreate)
	bodies := map[string]bool{}
	for _, id := range []string{theirs.ID.String(), deleted, uuid.NewString(), r.principal.ID.String()} {
		a := r.obtain(t, id)
		a.want(t, 404, "NOT_FOUND")
		checkBeta(t, "POST", a)
		a.header.Del("X-Request-Id")
		bodies[a.body+headerText(a.header)] = true
	}
	if sent := p.take(); len(bodies) != 1 || len(sent) > 0 {
		t.Errorf("answers %v, %d requests", bodies, len(sent))
	}
	send(t, r.handler, "POST", ppanPath, tokenBody(theirs.ID.String()), append(ppanHeaders, "X-Api-Key", key)...).want(t, 200)
}

// A card that the scheme has replaced or invalidated is not sent.
func TestPPANOfDeadCards(t *testing.T) {
	for kind, classifier := range map[network.NoticeKind]string{
		network.NoticeInvalidated:  "TOKEN_INVALIDATED",
		network.NoticeCardReplaced: "CARD_DATA_STALE",
		network.NoticeSuspended:    "",
		network.NoticeDeleted:      "",
		network.NoticeCardRenewed:  "",
	} {
		p, n := &provider{}, &wrapped{}
		r, _ := newNetworkRig(t, n, &cardvault.Options{PPAN: p}, nil)
		id := r.activate(t)
		n.notify(t, r.vault, kind)
		a := r.obtain(t, id)
		checkBeta(t, "POST", a)
		sent := p.take()
		if classifier == "" {
			a.want(t, 200)
			if kind == network.NoticeCardRenewed && (len(sent) != 1 || sent[0].expiry != renewed) {
				t.Errorf("sent %+v", sent)
			}
			continue
		}
		a.want(t, 409, classifier)
		if len(sent) > 0 {
			t.Errorf("%s: sent", classifier)
		}
	}
}

var renewed = card.Expiry{Month: 9, Year: 2035}

// notify sends the vault a notice about the last network token.
func (n *wrapped) notify(t testing.TB, v *cardvault.Vault, kind network.NoticeKind) {
	t.Helper()
	notice := &network.Notice{
		ID: uuid.NewString(), Kind: kind, OccurredAt: time.Now(), Token: network.Ref{ID: n.last}, By: network.OwnerIssuer,
	}
	switch kind {
	case network.NoticeCardReplaced:
		notice.Card = &network.CardState{LastFour: "1111", Expiry: renewed}
	case network.NoticeCardRenewed:
		notice.Card = &network.CardState{LastFour: pan[12:], Expiry: renewed}
	}
	if err := v.Notify(t.Context(), notice); err != nil {
		t.Fatal(err)
	}
}

// All faults of a provider have the same answer. Neither the answer nor the log contains
// anything that could be a card number.
func TestPPANFailures(t *testing.T) {
	answers := func(p *ppan.Answer, err error) func(context.Context) (*ppan.Answer, error) {
		return func(context.Context) (*ppan.Answer, error) { return p, err }
	}
	fails := map[string]func(context.Context) (*ppan.Answer, error){
		"error":               answers(nil, errors.New("refused")),
		"answer and error":    answers(validPPAN(), errors.New("refused")),
		"error of a number":   answers(nil, errors.New("card "+secretPAN+" was refused")),
		"parted number":       answers(nil, errors.New("4000 0566 5566 5556")),
		"error of the vault":  answers(nil, errors.Join(cardvault.ErrNotFound, cardvault.ErrUnauthenticated)),
		"cancelled by itself": answers(nil, context.Canceled),
		"panic":               func(context.Context) (*ppan.Answer, error) { panic("card " + secretPAN) },
		"nothing":             answers(nil, nil),
		"no status":           answers(&ppan.Answer{PseudoPAN: ppan.NewPseudoPAN([]byte(pseudoPAN))}, nil),
		"unknown status":      answers(&ppan.Answer{Status: 4, PseudoPAN: ppan.NewPseudoPAN([]byte(pseudoPAN))}, nil),
	}
	garbage := func(name string, status ppan.Status, change func(*ppan.Answer)) {
		p := validPPAN()
		p.Status = status
		change(p)
		fails[name+", "+status.String()] = answers(p, nil)
	}
	all := []ppan.Status{ppan.Valid, ppan.Invalid, ppan.Error}
	garbage("no number", ppan.Valid, func(p *ppan.Answer) { p.PseudoPAN = ppan.NewPseudoPAN([]byte("")) })
	for _, status := range all {
		for name, number := range map[string]string{
			"short number": "941001000003824", "long number": "94100100000382487461", "letters": "941001000003824874x", "masked number": "941001XXXXXX8746",
			"the number": secretPAN, "the number and more": secretPAN + "123", "more and the number": "12" + secretPAN,
		} {
			garbage(name, status, func(p *ppan.Answer) { p.PseudoPAN = ppan.NewPseudoPAN([]byte(number)) })
		}
		for name, member := range map[string]func(*ppan.Answer) *string{
			"TruncatedPAN":       func(p *ppan.Answer) *string { return &p.TruncatedPAN },
			"CardType":           func(p *ppan.Answer) *string { return &p.CardType },
			"CardExpiry":         func(p *ppan.Answer) *string { return &p.CardExpiry },
			"TravelCard":         func(p *ppan.Answer) *string { return &p.TravelCard },
			"TravelCardProvider": func(p *ppan.Answer) *string { return &p.TravelCardProvider },
			"TravelCardInvoice":  func(p *ppan.Answer) *string { return &p.TravelCardInvoice },
			"ErrorCode":          func(p *ppan.Answer) *string { return &p.ErrorCode },
			"ErrorMessage":       func(p *ppan.Answer) *string { return &p.ErrorMessage },
			"CustomerMessage":    func(p *ppan.Answer) *string { return &p.CustomerMessage },
		} {
			garbage("number in "+name, status, func(p *ppan.Answer) { *member(p) = "card " + secretPAN })
			garbage("parted number in "+name, status, func(p *ppan.Answer) { *member(p) = "4000-0566-5566-5556" })
			garbage("long "+name, status, func(p *ppan.Answer) { *member(p) = strings.Repeat("x", 256) })
		}
	}
	p := &provider{}
	r := newPPANRig(t, p, nil)
	a := r.do(t, "POST", "/cde-import", strings.Replace(strings.ReplaceAll(cardBody, pan, secretPAN), "{", `{"security_code":"`+secretCode+`",`, 1))
	a.want(t, 200)
	id := a.member(t, "id")
	for name, answer := range fails {
		t.Run(name, func(t *testing.T) {
			p.answer = answer
			r.log.take()
			a := r.obtain(t, id)
			checkBeta(t, "POST", a)
			const want = `{"status":"502","classifier":"PROVIDER_UNAVAILABLE","message":"The provider could not be reached, or its response could not be understood. It may or may not have received the request."}`
			if a.status != 502 || a.body != want || extraHeaders(a)[0] != "X-Api-Stability: beta" || len(extraHeaders(a)) != 1 {
				t.Errorf("%d %v %s", a.status, a.header, a.body)
			}
			log := r.log.take()
			transcript.NoEcho(t, name, log, headerText(a.header))
			for _, secret := range []string{ppanHash, pseudoPAN, "4000 0566", "4000-0566"} {
				if strings.Contains(log, secret) {
					t.Errorf("%s is logged: %s", secret, log)
				}
			}
			if !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "operation=ppan.obtain") {
				t.Errorf("the failure is not logged: %s", log)
			}
			if sent := p.take(); len(sent) != 1 {
				t.Errorf("%d requests", len(sent))
			}
		})
	}
	p.answer = nil
	r.obtain(t, id).want(t, 200)
	transcript.NoEcho(t, "success", r.log.take())
}

// A hanging provider is given up in time, with 504.
func TestPPANTimeout(t *testing.T) {
	for _, test := range []struct {
		name           string
		ppan, timeout  time.Duration
		after          time.Duration
		status         int
		ignoresTheTime bool // returns late
	}{
		{"defaults", 0, 0, 10 * time.Second, 504, false},
		{"a quick vault", time.Second, 0, time.Second, 504, false},
		{"a patient vault", 20 * time.Second, 0, 20 * time.Second, 504, false},
		{"a quick handler", 0, 2 * time.Second, 2 * time.Second, 504, false},
		{"late", time.Second, 0, 3 * time.Second, 504, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				p := &provider{answer: func(ctx context.Context) (*ppan.Answer, error) {
					<-ctx.Done()
					if test.ignoresTheTime {
						time.Sleep(2 * time.Second)
					}
					return nil, fmt.Errorf("wrapped: %w", ctx.Err())
				}}
				r := newRig(t, &cardvault.Options{PPAN: p, PPANTimeout: test.ppan}, &httpapi.Options{Timeout: test.timeout})
				id := r.importCard(t)
				c := serve(t, r.handler)()
				in := bufio.NewReader(c)
				post := func() (int, time.Duration) {
					start := time.Now()
					var headers strings.Builder
					for i := 0; i < len(ppanHeaders); i += 2 {
						headers.WriteString(ppanHeaders[i] + ": " + ppanHeaders[i+1] + "\r\n")
					}
					body := tokenBody(id)
					write(t, c, "POST "+ppanPath+" HTTP/1.1\r\nHost: x\r\nX-Api-Key: "+r.key+"\r\n"+headers.String()+
						"Content-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
					status, keeps := readAnswer(t, in, "POST")
					if !keeps {
						t.Error("the connection is not kept")
					}
					return status, time.Since(start)
				}
				if status, took := post(); status != test.status || took != test.after {
					t.Errorf("status %d after %v", status, took)
				}
				p.answer = nil
				if status, took := post(); status != 200 || took != 0 {
					t.Errorf("again: status %d after %v", status, took)
				}
			})
		})
	}
}

// A client that disconnects cancels the call, which is not a failure of the provider.
func TestPPANClientGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := &provider{answer: func(ctx context.Context) (*ppan.Answer, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	r := newPPANRig(t, p, nil)
	id := r.importCard(t)
	r.log.take()
	a := sendContext(t, ctx, r.handler, "POST", ppanPath, tokenBody(id), append(ppanHeaders, "X-Api-Key", r.key)...)
	a.want(t, 503, "SERVICE_UNAVAILABLE")
	checkBeta(t, "POST", a)
	if log := r.log.take(); strings.Contains(log, "level=ERROR") || strings.Contains(log, "level=WARN") {
		t.Errorf("logged as a failure: %s", log)
	}
}

// Answers are not stored: an idempotency key of any form is ignored.
func TestPPANIsNotRepeatable(t *testing.T) {
	p := &provider{}
	r := newPPANRig(t, p, nil)
	ids := []string{r.importCard(t), r.importCard(t)}
	for i, id := range []string{ids[0], ids[0], ids[1]} {
		a := r.obtain(t, id, "Idempotency-Key", "k")
		a.want(t, 200)
		if sent := p.take(); len(sent) != 1 || a.header["Idempotency-Replayed"] != nil {
			t.Errorf("call %d: %d requests, %v", i, len(sent), a.header)
		}
	}
	for _, headers := range [][]string{
		{"Idempotency-Key", ""}, {"Idempotency-Key", "a", "Idempotency-Key", "b"}, {"Idempotency-Key", "a", "X-Idempotency-Key", "b"},
		{"X-Idempotency-Key", strings.Repeat("x", 256)},
	} {
		r.obtain(t, ids[0], headers...).want(t, 200)
	}
}

// The log names the caller and the token, and nothing else of the request.
func TestPPANLog(t *testing.T) {
	r := newPPANRig(t, &provider{}, &httpapi.Options{ProviderName: "acme"})
	id := r.importCard(t)
	r.log.take()
	a := r.obtain(t, id)
	a.want(t, 200)
	log := r.log.take()
	for _, want := range []string{"operation=ppan.obtain", "path=" + ppanPath + " status=200", "key_id=" + r.principal.ID.String(), a.header.Get("X-Request-Id")} {
		if !strings.Contains(log, want) {
			t.Errorf("no %s in %s", want, log)
		}
	}
	for _, secret := range []string{ppanHash, pseudoPAN, "2000002", "424242"} {
		if strings.Contains(log, secret) {
			t.Errorf("%s is logged: %s", secret, log)
		}
	}
}

// A provider has its own name beside the neutral one.
func TestProviderName(t *testing.T) {
	p := &provider{}
	for _, name := range []string{"acme", "a", "0-9", strings.Repeat("x", 40), "provide"} {
		r := newPPANRig(t, p, &httpapi.Options{ProviderName: name})
		id := r.importCard(t)
		path := "/integrations/" + name + "/obtain-ppan"
		var own []string
		for i := 0; i < len(ppanHeaders); i += 2 {
			own = append(own, strings.Replace(ppanHeaders[i], "Provider", name, 1), ppanHeaders[i+1])
		}
		for _, test := range []struct {
			path    string
			headers []string
			prefix  string // of the refused fields; "" for none
		}{
			{path, own, ""},
			{path, slices.Concat(own, []string{"X-Provider-Aid", "", "X-Provider-Hash", "a", "X-Provider-Hash", "b"}), ""},
			{path, ppanHeaders, "header.x-" + name + "-"},
			{ppanPath, ppanHeaders, ""},
			{ppanPath, own, "header.x-provider-"},
		} {
			a := r.do(t, "POST", test.path, tokenBody(id), test.headers...)
			checkBeta(t, "POST", a)
			sent := p.take()
			if test.prefix == "" {
				a.want(t, 200)
				if len(sent) != 1 || sent[0].aid != "10002" || sent[0].hash != ppanHash || sent[0].mid != "10001" || sent[0].portalID != "2000002" {
					t.Errorf("%s: sent %+v", test.path, sent)
				}
				continue
			}
			a.want(t, 422, "VALIDATION_FAILED")
			want := map[string]string{}
			for _, n := range []string{"aid", "hash", "mid", "portalid"} {
				want[test.prefix+n] = "required"
			}
			if got := violations(t, a); fmt.Sprint(got) != fmt.Sprint(want) || len(sent) > 0 {
				t.Errorf("%s: %v, %d requests", test.path, got, len(sent))
			}
		}
		// All violations use the name, including the vault's.
		bad := append(own[2:], own[0], "é", own[0], "é")
		bad[1] = strings.Repeat("x", 256)
		a := r.do(t, "POST", path, tokenBody(id), bad...)
		want := map[string]string{"header.x-" + name + "-aid": "duplicate_parameter", "header.x-" + name + "-hash": "too_long"}
		if got := violations(t, a); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v, not %v", got, want)
		}
		r.do(t, "POST", "/integrations/other/obtain-ppan", tokenBody(id), own...).want(t, 404, "NOT_FOUND")
	}
	for _, name := range []string{"", "provider"} {
		r := newPPANRig(t, p, &httpapi.Options{ProviderName: name})
		r.obtain(t, r.importCard(t)).want(t, 200)
		r.do(t, "POST", "/integrations/acme/obtain-ppan", "").want(t, 404)
		r.do(t, "POST", "/integrations//obtain-ppan", "").want(t, 404)
	}
	// A handler does not serve another provider's name.
	newPPANRig(t, p, &httpapi.Options{ProviderName: "one"})
	newPPANRig(t, p, &httpapi.Options{ProviderName: "two"}).do(t, "POST", "/integrations/one/obtain-ppan", "").want(t, 404)
	v := newRig(t, nil, nil).vault
	for _, name := range []string{"Acme", "a_b", "a.b", "a/b", "*", " ", "a b", "é", "a\n", strings.Repeat("x", 41)} {
		if h, err := httpapi.NewHandler(v, &httpapi.Options{ProviderName: name}); err == nil || h != nil {
			t.Errorf("the name %q is accepted", name)
		}
	}
}
