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

// http compares the REST API with handlers that answer as many bytes and do
// nothing. Client and server share the machine.
func (b *bench) http(ctx context.Context) error {
	p, err := b.vault.List(ctx, &cardvault.TokenListOptions{Limit: 1})
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

	vault, stop, err := b.rest(ctx)
	if err != nil {
		return err
	}
	defer stop()
	empty, stop, err := client(ctx, bare, "")
	if err != nil {
		return err
	}
	defer stop()

	fmt.Printf("  %d tokens\n", p.TotalItems)
	for _, n := range []int{1, 64} {
		err := errors.Join(
			b.compare(n,
				contender{"GET /tokens/{id}", func(int) error { return vault.get(b) }},
				contender{"bare GET", func(int) error { return empty.get(b) }}),
			b.compare(n,
				contender{"POST /cde-import", func(int) error { return vault.post() }},
				contender{"bare POST", func(int) error { return empty.post() }}),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// rest serves the vault.
func (b *bench) rest(ctx context.Context) (*caller, func(), error) {
	key, err := b.vault.CreateAPIKey(ctx, "bench", cardvault.AllScopes(), nil)
	if err != nil {
		return nil, nil, err
	}
	api, err := httpapi.NewHandler(b.vault, nil)
	if err != nil {
		return nil, nil, err
	}
	if _, err := b.vault.UpdateAccount(ctx, cardvault.AccountUpdate{ImportApproved: new(true)}); err != nil {
		return nil, nil, err
	}
	return client(ctx, api, key.Text.Text())
}

// A caller makes the requests that are measured.
type caller struct {
	ctx      context.Context
	client   *http.Client
	url, key string
}

// client serves h, and returns who calls it.
func client(ctx context.Context, h http.Handler, key string) (*caller, func(), error) {
	url, end, err := serve(h)
	if err != nil {
		return nil, nil, err
	}
	c := &caller{ctx, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}, url, key}
	return c, func() { c.client.CloseIdleConnections(); end() }, nil
}

// get reads a token.
func (c *caller) get(b *bench) error {
	return c.do("GET", "/tokens/"+b.ids[rand.IntN(len(b.ids))].String(), nil)
}

// post imports a card.
func (c *caller) post() error {
	return c.do("POST", "/cde-import", []byte(`{"cardholder_name":"A Customer","expiry_month":12,"expiry_year":2030,"account_number":"4242424242424242"}`))
}

func (c *caller) do(method, path string, body []byte) error {
	r, err := http.NewRequestWithContext(c.ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}

	r.Header.Set("X-Api-Key", c.key)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}

	w, err := c.client.Do(r)
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

func serve(h http.Handler) (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go s.Serve(l)
	return "http://" + l.Addr().String(), func() { s.Close() }, nil
}
