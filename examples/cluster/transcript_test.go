//go:build unix

package main

import (
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/cardvault/cardvault/store"
)

const transcripts = "../../httpapi/testdata/transcripts"

// TestTranscripts plays the documented behaviour on three replicas behind the proxy, on PostgreSQL
// and Redis.
func TestTranscripts(t *testing.T) {
	codes := realtest.Redis(t, nil).URL("0")
	for _, file := range transcript.Files(t, transcripts) {
		t.Run(file.Name, func(t *testing.T) {
			stores, cache := openStores(t, codes)
			for i := range stores {
				stores[i] = bubble.Outside(t, stores[i])
			}
			cache = bubble.OutsideCodes(t, cache)
			file.Play(t, false, func(t *testing.T) *transcript.Setup {
				return &transcript.Setup{Stores: stores, Codes: cache, Front: front, ClientAddr: client, Rest: time.Hour}
			})
		})
	}
}

// tables makes a database with tables, as a template for copies.
var tables sync.Once

// openStores opens the stores of three replicas on a database of the test's own, and
// one cache.
func openStores(t *testing.T, codes string) (stores []store.Store, cache store.CodeCache) {
	t.Helper()
	tables.Do(func() {
		p := postgres.Get(t)
		p.SQL(t, "postgres", "CREATE DATABASE tables")
		if err := migrate(t.Context(), p.URL("tables")); err != nil {
			t.Fatal(err)
		}
	})
	c := config{store: database(t, "tables"), codes: codes}
	b, err := openBackend(t.Context(), &c, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	for range 3 {
		o, err := b.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := o.close(); err != nil {
				t.Error(err)
			}
		})
		stores, cache = append(stores, o.store), o.codes
	}
	return stores, cache
}
