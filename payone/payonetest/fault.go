package payonetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/cardvault/cardvault/internal/fault"
)

// A Fault answers a request otherwise than a provider should. The form has been
// read and can be read again.
type Fault func(w http.ResponseWriter, r *http.Request)

// A Faulty provider answers as its handler does, except for the faults that a test
// asks for. It is a handler, for httptest.NewServer or httptest.NewTLSServer. Its
// methods may be called concurrently.
type Faulty struct {
	plan     *fault.Plan[Fault] // its lock guards the fields below
	requests int
	form     url.Values
}

// NewFaulty returns a provider without a fault.
func NewFaulty(h http.Handler) *Faulty { return &Faulty{plan: fault.NewPlan[Fault](h.ServeHTTP)} }

// Next has the next requests answered by these faults, one each.
func (f *Faulty) Next(faults ...Fault) { f.plan.Next(faults...) }

// Requests returns how many requests have come, on any path.
func (f *Faulty) Requests() int {
	f.plan.Lock()
	defer f.plan.Unlock()
	return f.requests
}

// Form returns the last form that has come, without hash, card number and code.
func (f *Faulty) Form() url.Values {
	f.plan.Lock()
	defer f.plan.Unlock()
	return f.form
}

// ServeHTTP answers a request.
func (f *Faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	values, err := url.ParseQuery(string(fault.Body(r, maxForm+1)))
	if err != nil {
		values = nil
	}
	for _, secret := range []string{"hash", "cardpan", "cardcvc2"} {
		values.Del(secret)
	}

	f.plan.Lock()
	f.requests++
	f.form = values
	answer := f.plan.Take()
	f.plan.Unlock()
	answer(w, r)
}

// Answer answers with a status and a body.
func Answer(status int, body string) Fault {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// Redirect answers with a status of 300 to 399 and another path.
func Redirect(status int) Fault { return fault.Redirect(status, "/elsewhere") }

// Raw sends text, be it HTTP or not, and closes the connection.
func Raw(text string) Fault { return fault.Raw(text) }

// Hang answers nothing until the client has gone or release is closed.
func Hang(release <-chan struct{}) Fault {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}
}

// Drip begins an answer at once and sends a byte of it every few milliseconds,
// without an end, until the client has gone.
func Drip(w http.ResponseWriter, r *http.Request) { fault.Drip(w, r) }

// Headers answers with headers of a megabyte.
func Headers(w http.ResponseWriter, r *http.Request) {
	for i := range 1 << 10 {
		w.Header().Set(fmt.Sprintf("X-Fault-%d", i), strings.Repeat("x", 1<<10))
	}
}

// Huge answers with a VALID answer of ten megabytes.
func Huge(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, `{"status":"VALID","pseudocardpan":"9410010000038248746","x":"`)
	if fault.Fill(w, 10<<20) == nil {
		_, _ = io.WriteString(w, `"}`)
	}
}

// Echo answers with the form: as the errormessage of an answer with status ERROR.
func Echo(w http.ResponseWriter, r *http.Request) {
	_ = json.NewEncoder(w).Encode(map[string]string{"status": "ERROR", "errorcode": "1", "errormessage": echo(r)})
}

// EchoCard answers with the card number alone, as the errormessage of an answer
// with status ERROR.
func EchoCard(w http.ResponseWriter, r *http.Request) {
	values, _ := url.ParseQuery(echo(r))
	_ = json.NewEncoder(w).Encode(map[string]string{"status": "ERROR", "errormessage": values.Get("cardpan")})
}

// EchoText answers with the form as plain text, with a status.
func EchoText(status int) Fault {
	return func(w http.ResponseWriter, r *http.Request) { Answer(status, echo(r))(w, r) }
}

// EchoRaw sends the form in place of HTTP.
func EchoRaw(w http.ResponseWriter, r *http.Request) { Raw(echo(r)+"\r\n\r\n")(w, r) }

// EchoHeader sends the form as a malformed line of the headers.
func EchoHeader(w http.ResponseWriter, r *http.Request) {
	Raw("HTTP/1.1 200 OK\r\n"+echo(r)+"\r\n\r\n")(w, r)
}

func echo(r *http.Request) string {
	form, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return string(form)
}
