package bubble_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/internal/codes"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

// An elsewhere waits in real time for its own goroutine, as a client waits for a server.
type elsewhere struct {
	store.Store
	asked, answered chan struct{}
}

func (s elsewhere) Update(ctx context.Context, fn func(store.Tx) error) error {
	s.asked <- struct{}{}
	<-s.answered
	return s.Store.Update(ctx, fn)
}

// An impatient store aborts a function at its first read, and runs it again.
type impatient struct{ store.Store }

type unread struct {
	store.Tx
}

func (unread) Get(store.Kind, uuid.UUID) (*store.Record, error) { panic("not yet") }

func (s impatient) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, func(tx store.Tx) error {
		func() {
			defer func() { _ = recover() }() // the function panics, as it should
			_ = fn(unread{tx})
		}()
		return fn(tx)
	})
}

func TestOutside(t *testing.T) {
	e := elsewhere{memstore.New(), make(chan struct{}), make(chan struct{})}
	go func() {
		for range e.asked {
			<-time.After(time.Millisecond)
			e.answered <- struct{}{}
		}
	}()
	t.Cleanup(func() { close(e.asked) })
	s, again := bubble.Outside(t, e), bubble.Outside(t, impatient{e.Store})
	bubble.Test(t, func(t *testing.T) {
		ctx, begin, id := t.Context(), time.Now(), uuid.New()
		put := func(tx store.Tx) error {
			if !time.Now().Equal(begin) {
				t.Error("the function runs outside the bubble")
			}
			if _, err := tx.Get(1, id); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("a record that was never stored: %v", err)
			}
			tx.Put(&store.Record{Kind: 1, ID: id, Version: 1, Due: begin.Add(time.Hour)})
			return nil
		}
		wrong := errors.New("wrong")
		if err := s.Update(ctx, func(tx store.Tx) error { return errors.Join(put(tx), wrong) }); !errors.Is(err, wrong) {
			t.Errorf("a function that fails: %v", err)
		}
		func() {
			defer func() {
				if recover() != "loose" {
					t.Error("a panic is lost")
				}
			}()
			s.Update(ctx, func(tx store.Tx) error { put(tx); panic("loose") })
		}()
		if err := s.Update(ctx, put); err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := s.Update(ended, put); !errors.Is(err, context.Canceled) {
			t.Errorf("a context that has ended: %v", err)
		}
		runs := 0
		if err := again.Update(ctx, func(tx store.Tx) error {
			runs++
			_, err := tx.Get(1, id)
			return err
		}); err != nil || runs != 2 {
			t.Errorf("a function that the store aborts and runs again ran %d times: %v", runs, err)
		}
		time.Sleep(time.Hour)
		err := s.View(ctx, func(tx store.ReadTx) error {
			due, err := tx.Due(1, store.AllShards, time.Now(), 2)
			if err != nil || len(due) != 1 || due[0].ID != id {
				t.Errorf("due records: %v, %v", due, err)
			}
			next, err := tx.Next(1, store.AllShards)
			if err != nil || !next.Equal(begin.Add(time.Hour)) {
				t.Errorf("next due time: %v, %v", next, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A remote cache waits in real time, as a client waits for a server.
type remote struct{ store.CodeCache }

func (c remote) Get(ctx context.Context, id uuid.UUID) ([]byte, error) {
	<-time.After(time.Millisecond)
	return c.CodeCache.Get(ctx, id)
}

func TestOutsideCodes(t *testing.T) {
	inside := codes.New(10, nil)
	c := bubble.OutsideCodes(t, remote{inside})
	id := uuid.New()
	bubble.Test(t, func(t *testing.T) {
		ctx, begin := t.Context(), time.Now()
		holds := func(when, want string) {
			t.Helper()
			got, err := c.Get(ctx, id)
			if want == "" && !errors.Is(err, store.ErrNotFound) || want != "" && err != nil || string(got) != want {
				t.Errorf("%s: %q, %v", when, got, err)
			}
		}
		put := func(value string) {
			t.Helper()
			if err := c.Put(ctx, id, []byte(value), time.Hour); err != nil {
				t.Error(err)
			}
		}
		put("a")
		holds("put", "a")
		if !time.Now().Equal(begin) {
			t.Error("the bubble's clock advances during calls")
		}
		time.Sleep(time.Hour - 1)
		holds("just before it expires", "a")
		time.Sleep(time.Nanosecond)
		holds("when it expires", "")
		put("b")
		holds("put again", "b")
		if err := c.Delete(ctx, id); err != nil {
			t.Error(err)
		}
		holds("deleted", "")
		put("c")
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := c.Get(ended, id); !errors.Is(err, context.Canceled) {
			t.Errorf("a context that has ended: %v", err)
		}
	})
	if got, err := inside.Get(t.Context(), id); err != nil || string(got) != "c" {
		t.Errorf("the cache itself has %q, %v", got, err)
	}
}
