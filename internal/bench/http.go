package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
)

// http compares the REST surface with handlers that answer as many bytes and do
// nothing. Client and server share the machine.
func (b *bench) http(ctx context.Context) error {
	p, err := b.vault.List(ctx, &cardvault.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	if err := b.vault.SetApprovals(ctx, cardvault.Approvals{Import: true}); err != nil {
		return err
	}
	_, key, err := b.vault.CreateAPIKey(ctx, "bench", cardvault.AllScopes(), nil)
	if err != nil {
		return err
	}
	api, err := httpapi.NewHandler(b.vault, nil)
	if err != nil {
		return err
	}
	answer := bytes.Repeat([]byte("x"), 1050)
	bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(answer)
	})
	vaultURL, stopVault, err := serve(api)
	if err != nil {
		return err
	}
	defer stopVault()
	bareURL, stopBare, err := serve(bare)
	if err != nil {
		return err
	}
	defer stopBare()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	defer client.CloseIdleConnections()
	do := func(method, url string, body []byte) error {
		r, err := http.NewRequest(method, url, bytes.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("X-Api-Key", key.Text())
		if body != nil {
			r.Header.Set("Content-Type", "application/json")
		}
		w, err := client.Do(r)
		if err != nil {
			return err
		}
		defer w.Body.Close()
		if w.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", method, w.Status)
		}
		_, err = io.Copy(io.Discard, w.Body)
		return err
	}
	body := []byte(`{"cardholder_name":"A Customer","expiry_month":12,"expiry_year":2030,"account_number":"4242424242424242"}`)
	fmt.Printf("  %d tokens\n", p.TotalItems)
	for _, n := range []int{1, 64} {
		err := errors.Join(
			b.compare(n,
				contender{"GET /tokens/{id}", func(int) error {
					return do("GET", vaultURL+"/tokens/"+b.ids[rand.IntN(len(b.ids))].String(), nil)
				}},
				contender{"bare GET", func(int) error { return do("GET", bareURL+"/", nil) }}),
			b.compare(n,
				contender{"POST /cde-import", func(int) error { return do("POST", vaultURL+"/cde-import", body) }},
				contender{"bare POST", func(int) error { return do("POST", bareURL+"/", body) }}),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

func serve(h http.Handler) (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go s.Serve(l)
	return "http://" + l.Addr().String(), func() { s.Close() }, nil
}
