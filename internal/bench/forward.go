package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/store/memstore"
)

// A request for a payment, and the answer of a provider to it.
const (
	charging = `{"number":"%s","month":"%s","year":"%s","amount":1999,"currency":"EUR","reference":"order 4711"}`
	answered = `{"id":"ch_3MtwBwLkdIwHu7ix28a3tqPa","object":"charge","amount":1999,"currency":"eur","paid":true,"status":"succeeded",` +
		`"payment_method_details":{"card":{"brand":"visa","last4":"4242","exp_month":4,"exp_year":2088,"checks":{"cvc_check":"pass"}}}}`
)

// forwards compares a forward with a bare reverse proxy, which sends the same body over one
// connection with TLS and reads the same answer. The time of the provider counts for both.
func (b *bench) forwards(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	provider := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answered)) // the client compares lengths
	}))
	open.later(func() error { provider.Close(); return nil })
	ours, err := forwarding(ctx, provider, &open)
	if err != nil {
		return err
	}
	bare, err := proxying(provider, &open)
	if err != nil {
		return err
	}

	const calls = 300
	works := [2]work{{name: "forward", callers: 1, calls: calls, run: ours}, {name: "proxy", callers: 1, calls: calls, run: bare}}
	var more, proxy []float64
	for range b.table.Rounds {
		var low [2]cost
		for range turns {
			for i := range works {
				c, err := works[i].measure()
				if err != nil {
					return err
				}
				low[i] = low[i].lowest(c)
			}
		}
		more = append(more, (low[0].cpu-low[1].cpu).Seconds()*1e6)
		proxy = append(proxy, low[1].cpu.Seconds()*1e6)
	}

	b.figures("forward/more", "µs", most(60), "processor of a forward, less that of a bare reverse proxy of the same body", more...)
	b.figures("forward/proxy", "µs", reported, "processor of the reverse proxy, with client and provider", proxy...)
	return nil
}

// forwarding returns a forward of a card to a provider.
func forwarding(ctx context.Context, provider *httptest.Server, open *closers) (call func(int) error, err error) {
	keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
	if err != nil {
		return nil, err
	}
	v, err := cardvault.New(ctx, memstore.New(), keys, &cardvault.Options{Mode: cardvault.Sandbox})
	if err != nil {
		return nil, err
	}
	open.later(v.Close)
	token, err := v.Import(ctx, testCard(0), nil)
	if err != nil {
		return nil, err
	}

	roots := x509.NewCertPool()
	roots.AddCert(provider.Certificate())
	to := forward.Destination{Name: "psp", URL: provider.URL, Roots: roots}
	f, err := forward.New(v, []forward.Destination{to}, &forward.Options{AllowLoopback: true})
	if err != nil {
		return nil, err
	}
	open.later(func() error { f.Close(); return nil })

	r := &forward.Request{
		Method: http.MethodPost,
		URL:    provider.URL + "/charges",
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   fmt.Appendf(nil, charging, "{{ account_number }}", "{{ expiry_month }}", "{{ expiry_year }}"),
	}
	return func(int) error {
		a, err := f.Do(ctx, token.ID, r, nil)
		if err == nil && len(a.Body) != len(answered) {
			err = fmt.Errorf("status %d, %d bytes", a.StatusCode, len(a.Body))
		}
		return err
	}, nil
}

// proxying returns a request through a reverse proxy to a provider.
func proxying(provider *httptest.Server, open *closers) (call func(int) error, err error) {
	to, err := url.Parse(provider.URL)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: provider.Client().Transport.(*http.Transport).TLSClientConfig.Clone()}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = transport
	open.later(func() error { transport.CloseIdleConnections(); return nil })
	body := fmt.Appendf(nil, charging, "4242424242424242", "04", "2088")
	return func(int) error {
		r := httptest.NewRequest(http.MethodPost, provider.URL+"/charges", bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		proxy.ServeHTTP(w, r)
		if w.Code != http.StatusOK || w.Body.Len() != len(answered) {
			return fmt.Errorf("status %d, %d bytes", w.Code, w.Body.Len())
		}
		return nil
	}, nil
}
