//go:build unix

package forward_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/cardvault/cardvault/forward"
)

// BenchmarkForward compares a forward with a bare reverse proxy, which sends the same body
// over one connection with TLS and reads the same answer.
func BenchmarkForward(b *testing.B) {
	answer := []byte(`{"id":"ch_3MtwBwLkdIwHu7ix28a3tqPa","object":"charge","amount":1999,"currency":"eur","paid":true,"status":"succeeded",` +
		`"payment_method_details":{"card":{"brand":"visa","last4":"4242","exp_month":4,"exp_year":2088,"checks":{"cvc_check":"pass"}}}}`)
	serve := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		_, _ = w.Write(answer)
	}
	l := open(b, serve, nil)
	b.Run("proxy", func(b *testing.B) {
		body := []byte(`{"number":"4242424242424242","month":"04","year":"2088","amount":1999,"currency":"eur","reference":"order 4711"}`)
		u, err := url.Parse(l.server.URL)
		if err != nil {
			b.Fatal(err)
		}
		proxy := httputil.NewSingleHostReverseProxy(u)
		proxy.Transport = &http.Transport{TLSClientConfig: l.server.Client().Transport.(*http.Transport).TLSClientConfig}
		defer proxy.Transport.(*http.Transport).CloseIdleConnections()
		defer cost(b)()
		for b.Loop() {
			r := httptest.NewRequest(http.MethodPost, l.server.URL+"/v1/charges", bytes.NewReader(body))
			r.Header.Set("Content-Type", jsonType)
			w := httptest.NewRecorder()
			proxy.ServeHTTP(w, r)
			if w.Code != 200 || w.Body.Len() != len(answer) {
				b.Fatal(w.Code)
			}
		}
	})
	b.Run("forward", func(b *testing.B) {
		r := l.request(jsonType, `{"number":"{{ account_number }}","month":"{{ expiry_month }}","year":"{{ expiry_year }}","amount":1999,"currency":"eur","reference":"order 4711"}`)
		defer cost(b)()
		for b.Loop() {
			a, err := l.Do(b.Context(), l.token, r, &forward.CallOptions{})
			if err != nil || len(a.Body) != len(answer) {
				b.Fatal(err)
			}
		}
	})
}

// cost reports the processor time of the process, with that of the destination.
func cost(b *testing.B) func() {
	before := processTime(b)
	return func() {
		b.ReportMetric(float64((processTime(b)-before).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
	}
}

func processTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
