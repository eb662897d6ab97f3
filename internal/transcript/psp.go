package transcript

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/forward"
	"github.com/google/uuid"
)

// A psp is a payment provider to which POST /forward sends cards. It stands outside the
// bubble, where time stands still while a connection is open: see rest.
type psp struct {
	*httptest.Server
	gone string // a URL without a server: a port that no system gives to a listener by itself
}

func startPSP(t *testing.T) *psp {
	p := &psp{httptest.NewServer(http.HandlerFunc(answerPSP)), "http://127.0.0.1:1"}
	t.Cleanup(p.Close)
	return p
}

// answerPSP answers as the path says.
func answerPSP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	h := w.Header()
	h["Date"] = nil

	switch _, path, _ := strings.Cut(r.URL.Path[1:], "/"); path {
	case "charges":
		charge(w, r, body)
	case "echo":
		h["Content-Type"] = r.Header["Content-Type"]
		h["Set-Cookie"], h["X-Several"] = []string{"session=1"}, []string{"1", "2"}
		if given := r.Header.Get("X-Card"); given != "" {
			h.Set("X-Given", given)
		}
		_, _ = w.Write(body) // the client is gone if this fails
	case "empty":
		w.WriteHeader(http.StatusNoContent)
	case "bytes":
		h.Set("Content-Type", "application/octet-stream")
		_, _ = w.Write([]byte{0xff, 0xfe, 0xfd}) // likewise
	case "large":
		h.Set("Content-Type", "text/plain")
		_, _ = w.Write(make([]byte, 1<<20+1)) // likewise
	case "compressed":
		h.Set("Content-Type", "text/plain")
		h.Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = z.Write(body) // likewise
		_ = z.Close()
	case "encoded":
		h.Set("Content-Encoding", "br")
		_, _ = w.Write(body) // likewise
	case "moved":
		h.Set("Location", "https://elsewhere.example/")
		w.WriteHeader(http.StatusTemporaryRedirect)
	case "cut":
		panic(http.ErrAbortHandler)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// charge charges a card, and answers with what shows that it has arrived.
func charge(w http.ResponseWriter, r *http.Request, body []byte) {
	var c struct {
		Number string          `json:"number"`
		Month  json.RawMessage `json:"month"`
		Year   json.RawMessage `json:"year"`
		Code   string          `json:"code"`
		Name   string          `json:"name"`
		Proof  string          `json:"proof"`
		ECI    string          `json:"eci"`
	}
	if r.Header.Get("Content-Type") == "application/x-www-form-urlencoded" {
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		c.Number, c.Name = r.FormValue("card[number]"), r.FormValue("name")
		c.Month, c.Year = json.RawMessage(r.FormValue("month")), json.RawMessage(r.FormValue("year"))
	} else if json.Unmarshal(body, &c) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}

	w.Header().Set("Content-Type", "application/json")
	if len(c.Number) < 12 {
		w.WriteHeader(http.StatusPaymentRequired)
		_, _ = w.Write([]byte(`{"error":"card_declined"}`)) // the client is gone if this fails
		return
	}
	answer, err := json.Marshal(map[string]any{
		"id": "ch_1", "iin": c.Number[:6], "length": len(c.Number), "month": string(c.Month), "year": string(c.Year),
		"code": len(c.Code), "name": c.Name, "proof": len(c.Proof), "eci": c.ECI, "key": r.Header.Get("Authorization"),
	})
	if err != nil {
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(answer) // likewise
}

// credential returns a credential of the operator for the provider.
func credential(_ context.Context, _ uuid.UUID, name string) (forward.Credential, error) {
	if name != "key" {
		return forward.Credential{}, nil
	}
	return forward.NewCredential([]byte("sk_of_the_operator")), nil
}

// Providers in memory, where time passes: one takes requests and does not answer, the other
// does not take connections.
const silent, deaf = "http://127.0.0.2", "http://127.0.0.3"

// dial connects to the provider, or to one that is silent or deaf.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	switch "http://" + strings.TrimSuffix(address, ":80") {
	case silent:
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }() // until near is closed
		return near, nil
	case deaf:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}

// forwarder returns a forwarder to the provider, whose connections end with the test.
func (p *psp) forwarder(t *testing.T, v *cardvault.Vault, other uuid.UUID) *forward.Forwarder {
	t.Helper()
	f, err := forward.New(v, []forward.Destination{
		{Name: "psp", URL: p.URL + "/v1/", Credential: credential},
		{Name: "reader", URL: p.URL + "/v1/empty", Methods: []string{"GET"}},
		{Name: "others", URL: p.URL + "/others/", Accounts: []uuid.UUID{other}},
		{Name: "gone", URL: p.gone + "/v1/"},
		{Name: "silent", URL: silent + "/v1/", Timeout: time.Second},
		{Name: "deaf", URL: deaf + "/v1/", Timeout: time.Second},
	}, &forward.Options{AllowLoopback: true, Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}
