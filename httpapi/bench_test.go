package httpapi_test

import (
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
)

// BenchmarkHTTP compares reads and imports with a bare net/http handler that sends the same
// bytes, over 64 loopback connections. The vault is in memory: durable writes are measured
// elsewhere.
func BenchmarkHTTP(b *testing.B) {
	const connections = 64
	silent := slog.New(slog.DiscardHandler)
	r := newRig(b, &cardvault.Options{Logger: silent}, &httpapi.Options{Logger: silent})
	id := r.importCard(b)
	token := r.do(b, "GET", "/tokens/"+id, "")
	bare := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			b.Error(err)
		}
		for name, values := range token.header {
			w.Header()[name] = values
		}
		if _, err := io.WriteString(w, token.body); err != nil {
			b.Error(err)
		}
	})
	// rate makes n requests and returns the answers per second.
	rate := func(b *testing.B, h http.Handler, method, path, body string, n int) float64 {
		s := newServer(b, h, false)
		s.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = connections
		turns := make(chan struct{}, connections)
		var wg sync.WaitGroup
		start := time.Now()
		for range connections {
			wg.Go(func() {
				for range turns {
					req, err := http.NewRequestWithContext(b.Context(), method, s.URL+path, strings.NewReader(body))
					if err != nil {
						b.Error(err)
						continue
					}
					req.Header.Set("X-Api-Key", r.key)
					req.Header.Set("Content-Type", "application/json")
					resp, err := s.Client().Do(req)
					if err != nil {
						b.Error(err)
						continue
					}
					if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
						b.Errorf("status %d, %v", resp.StatusCode, err)
					}
					resp.Body.Close()
				}
			})
		}
		for range n {
			turns <- struct{}{}
		}
		close(turns)
		wg.Wait()
		return float64(n) / time.Since(start).Seconds()
	}
	for _, test := range []struct{ name, method, path, body string }{
		{"read", "GET", "/tokens/" + id, ""},
		{"import", "POST", "/cde-import", cardBody},
	} {
		b.Run(test.name+"-"+strconv.Itoa(connections), func(b *testing.B) {
			for b.Loop() {
				const n = 10_000
				// Rounds alternate, so that a slow moment of the machine slows both.
				var vault, plain float64
				for range 4 {
					plain += rate(b, bare, test.method, test.path, test.body, n)
					vault += rate(b, r.handler, test.method, test.path, test.body, n)
				}
				b.ReportMetric(vault/4, "requests/s")
				b.ReportMetric(vault/plain, "ratio")
			}
		})
	}
}
