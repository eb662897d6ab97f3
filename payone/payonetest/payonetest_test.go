package payonetest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/payone/payonetest"
	"github.com/cardvault/cardvault/ppan"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/vaulttest"
)

func TestMain(m *testing.M) { goroutines.Verify(m) }

const pan = "4242424242424242"

// form returns a form as sent by package payone.
func form(travelCard bool) url.Values {
	of := payone.HashParameters{AID: "a&b %", MID: "11111", PortalID: "3333333", Sandbox: true, TravelCard: travelCard}
	f := url.Values{
		"request": {"creditcardcheck"}, "responsetype": {"JSON"}, "encoding": {"UTF-8"}, "storecarddata": {"yes"},
		"mode": {"test"}, "api_version": {"3.11"}, "aid": {of.AID}, "mid": {of.MID}, "portalid": {of.PortalID},
		"cardpan": {pan}, "cardexpiredate": {"4102"}, "cardcvc2": {"7391"},
	}
	payone.Hash(simnet.PortalKey, of).Expose(func(hash []byte) { f.Set("hash", string(hash)) })
	if travelCard {
		f.Set("checktype", "TC")
	}
	return f
}

// A recorder is a provider that records its requests, and answers p and err.
type recorder struct {
	asked []string
	kept  *ppan.Request
	p     *ppan.Answer
	err   error
}

func (p *recorder) Info() ppan.Info { return ppan.Info{Name: "recorder"} }

func (p *recorder) ObtainPPAN(_ context.Context, r *ppan.Request) (*ppan.Answer, error) {
	var b strings.Builder
	r.Account.Hash.Expose(func([]byte) { b.WriteString(r.Account.AID + "," + r.Account.MID + "," + r.Account.PortalID) })
	r.PAN.Expose(func(d []byte) { b.WriteString("," + string(d)) })
	r.SecurityCode.Expose(func(d []byte) { b.WriteString("," + string(d)) })
	p.asked = append(p.asked, fmt.Sprint(b.String(), ",", r.Expiry, ",", r.Sandbox))
	p.kept = r
	return p.p, p.err
}

func post(h http.Handler, contentType, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/client-api/", strings.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const formType = "application/x-www-form-urlencoded"

func TestHandler(t *testing.T) {
	without := form(false)
	without.Del("cardcvc2")
	const card = "a&b %,11111,3333333," + pan
	for _, c := range []struct {
		name, body, asked string
	}{
		{"with a code", form(false).Encode(), card + ",7391,{2 2041},true"},
		{"without", without.Encode(), card + ",,{2 2041},true"},
		{"travel card", form(true).Encode(), card + ",7391,{2 2041},true"},
		{"other escapes", strings.ReplaceAll(form(false).Encode(), "a%26b+%25", "%61%26b%20%25"), card + ",7391,{2 2041},true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &recorder{p: &ppan.Answer{Status: ppan.Valid, PseudoPAN: ppan.NewPseudoPAN([]byte("9410010000038248")), CardType: "V", TravelCard: "no"}}
			w := post(payonetest.NewHandler(simnet.PortalKey, p), formType+"; charset=UTF-8", c.body)
			want := `{"status":"VALID","pseudocardpan":"9410010000038248","cardtype":"V","tcdata":"no"}` + "\n"
			if w.Code != http.StatusOK || w.Body.String() != want || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if len(p.asked) != 1 || p.asked[0] != c.asked {
				t.Errorf("asked %q", p.asked)
			}
			erased := func(b []byte) {
				if len(strings.Trim(string(b), "\x00")) > 0 {
					t.Error("the request is not erased")
				}
			}
			p.kept.PAN.Expose(erased)
			p.kept.SecurityCode.Expose(erased)
			p.kept.Account.Hash.Expose(erased)
		})
	}
}

func TestWrongForm(t *testing.T) {
	with := func(name string, values ...string) string {
		f := form(true)
		if f[name] = values; values == nil {
			delete(f, name)
		}
		return f.Encode()
	}
	cases := map[string]string{
		"empty":            "",
		"twice":            with("cardpan", pan, pan),
		"unknown":          with("cardissuenumber", "1"),
		"unknown number":   with(pan, "1"),
		"bad escape":       form(false).Encode() + "%",
		"bad escape 2":     strings.ReplaceAll(form(false).Encode(), "11111", "1111%1"),
		"bad escape 3":     strings.ReplaceAll(form(false).Encode(), "11111", "1111%x1"),
		"bad escape 4":     strings.ReplaceAll(form(false).Encode(), "11111", "1111%1x"),
		"semicolons":       strings.ReplaceAll(form(false).Encode(), "&", ";"),
		"trailing &":       form(false).Encode() + "&",
		"no value":         strings.ReplaceAll(form(false).Encode(), "cardcvc2=7391", "cardcvc2"),
		"hash of the rest": strings.ReplaceAll(form(false).Encode(), "11111", "11112"),
		"not travel card":  with("checktype"),
	}
	for name := range form(true) {
		if name != "checktype" && name != "cardcvc2" {
			cases["no "+name] = with(name)
		}
		cases["other "+name] = with(name, "x")
		cases["empty "+name] = with(name, "")
	}
	p := &recorder{p: &ppan.Answer{Status: ppan.Invalid}}
	h := payonetest.NewHandler(simnet.PortalKey, p)
	for name, body := range cases {
		w := post(h, formType, body)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"status":"ERROR","errorcode":"`) ||
			!strings.Contains(w.Body.String(), `"customermessage":"`) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		vaulttest.AssertNoLeak(t, []string{pan, "7391"}, w.Body.String())
	}
	if len(p.asked) > 0 {
		t.Errorf("asked %q", p.asked)
	}
	if w := post(payonetest.NewHandler("another key", p), formType, form(false).Encode()); !strings.Contains(w.Body.String(), `"errorcode":"2006"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestNoForm(t *testing.T) {
	p := &recorder{err: errors.New(pan)}
	h := payonetest.NewHandler(simnet.PortalKey, p)
	for _, c := range []struct {
		name, method, contentType string
		body                      io.Reader
		want                      int
	}{
		{"GET", http.MethodGet, formType, nil, http.StatusMethodNotAllowed},
		{"JSON", http.MethodPost, "application/json", strings.NewReader("{}"), http.StatusUnsupportedMediaType},
		{"no type", http.MethodPost, "", strings.NewReader("{}"), http.StatusUnsupportedMediaType},
		{"long", http.MethodPost, formType, strings.NewReader(strings.Repeat("x", 8<<10+1)), http.StatusRequestEntityTooLarge},
		{"broken", http.MethodPost, formType, broken{}, http.StatusBadRequest},
		{"provider fails", http.MethodPost, formType, strings.NewReader(form(false).Encode()), http.StatusInternalServerError},
	} {
		r := httptest.NewRequest(c.method, "/", c.body)
		r.Header.Set("Content-Type", c.contentType)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.want || w.Body.Len() > 0 {
			t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
		}
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("broken") }

// Faults take effect in order, one per request. The form is recorded without its secrets.
func TestFaulty(t *testing.T) {
	p := &recorder{p: &ppan.Answer{Status: ppan.Invalid}}
	f := payonetest.NewFaulty(payonetest.NewHandler(simnet.PortalKey, p))
	f.Next(payonetest.Answer(500, "a"), payonetest.EchoText(400))
	for i, want := range []string{"500 a", "400 " + form(true).Encode(), "200 " + `{"status":"INVALID"}` + "\n"} {
		w := post(f, formType, form(true).Encode())
		if got := fmt.Sprint(w.Code, " ", w.Body); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if f.Requests() != i+1 {
			t.Errorf("%d requests", f.Requests())
		}
	}
	want := form(true)
	for _, secret := range []string{"hash", "cardpan", "cardcvc2"} {
		want.Del(secret)
	}
	if got := f.Form(); got.Encode() != want.Encode() {
		t.Errorf("the form is %v", got)
	}
	hanging := payonetest.Hang(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	hanging(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil))
	release := make(chan struct{})
	close(release)
	payonetest.Hang(release)(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil))
}
