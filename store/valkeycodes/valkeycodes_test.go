package valkeycodes_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/goroutines"
	"github.com/google/uuid"
	"github.com/valkey-io/valkey-go"

	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/storetest"
	"github.com/cardvault/cardvault/store/valkeycodes"
)

func TestMain(m *testing.M) { goroutines.Verify(m) }

func at(addr string) valkey.ClientOption { return valkey.ClientOption{InitAddress: []string{addr}} }

// open opens a cache. Unless o has a Patience, a server looks dead only when it closes its
// connections, not when the machine is busy.
func open(t testing.TB, addr string, o *valkeycodes.Options) *valkeycodes.Cache {
	t.Helper()
	c, err := valkeycodes.Open(t.Context(), at(addr), patient(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// hasty is for a cache that gives up a hanging server.
var hasty = &valkeycodes.Options{Patience: 50 * time.Millisecond}

func patient(o *valkeycodes.Options) *valkeycodes.Options {
	var settings valkeycodes.Options
	if o != nil {
		settings = *o
	}
	settings.Patience = cmp.Or(settings.Patience, 15*time.Second)
	return &settings
}

func id(n int) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:], uint64(n+1))
	return id
}

func put(t testing.TB, c *valkeycodes.Cache, n int) {
	t.Helper()
	eventually(t, "Put", func() error { return c.Put(t.Context(), id(n), fmt.Append(nil, n), time.Hour) })
}

// holds waits until the cache returns a value, which must be the expected one.
func holds(t testing.TB, c *valkeycodes.Cache, n int, want string) {
	t.Helper()
	eventually(t, "Get", func() error {
		got, err := c.Get(t.Context(), id(n))
		if errors.Is(err, store.ErrNotFound) || err == nil && string(got) != want {
			t.Fatalf("value %d is %q, %v, want %q", n, got, err, want)
		}
		return err
	})
}

// lacks waits until the cache answers, which must be that there is no value.
func lacks(t testing.TB, what string, c *valkeycodes.Cache, n int) {
	t.Helper()
	eventually(t, what, func() error {
		got, err := c.Get(t.Context(), id(n))
		switch {
		case err == nil:
			t.Fatalf("%s: value %d is %q, want none", what, n, got)
		case errors.Is(err, store.ErrNotFound):
			return nil
		}
		return err // of a connection that ends
	})
}

// eventually waits until try succeeds.
func eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// recovers waits until the cache can be used again.
func recovers(t testing.TB, c *valkeycodes.Cache) {
	t.Helper()
	eventually(t, "the server does not come back", func() error { return c.Put(t.Context(), uuid.Max, nil, time.Hour) })
}

// admin is another client of the server.
type admin struct {
	testing.TB
	valkey.Client
}

func administer(t testing.TB, s *realtest.Server) admin {
	t.Helper()
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{s.Addr()}, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return admin{t, client}
}

func (a admin) run(words ...string) valkey.ValkeyResult {
	a.Helper()
	result := a.Do(a.Context(), a.B().Arbitrary(words...).Build())
	if err := result.Error(); err != nil {
		a.Fatalf("%s: %v", words[0], err)
	}
	return result
}

func (a admin) keys() []string {
	a.Helper()
	keys, err := a.run("KEYS", "*").AsStrSlice()
	if err != nil {
		a.Fatal(err)
	}
	return keys
}

func TestContract(t *testing.T) {
	s := realtest.Redis(t, nil)
	opened := func(t testing.TB) store.CodeCache { return open(t, s.Addr(), &valkeycodes.Options{Prefix: t.Name()}) }
	storetest.RunCodes(t, storetest.CodesHarness{
		Open: opened,
		Reopen: func(t testing.TB, c store.CodeCache) (store.CodeCache, error) {
			s.Kill()
			s.Restart(t)
			return c, nil
		},
		Second: func(t testing.TB, _ store.CodeCache) (store.CodeCache, error) { return opened(t), nil },
		Fault: func(t testing.TB, _ store.CodeCache) func() {
			s.Stop()
			return s.Continue
		},
	})
}

// TestKeys: keys begin with the prefix, and each expires a millisecond early, because the
// server rounds up.
func TestKeys(t *testing.T) {
	s := realtest.Redis(t, nil)
	a := administer(t, s)
	for want, o := range map[string]*valkeycodes.Options{"cardvault:code:": nil, "other:": {Prefix: "other:"}} {
		c := open(t, s.Addr(), o)
		const ttl = 10 * time.Minute
		before := time.Now()
		if err := c.Put(t.Context(), id(1), nil, ttl); err != nil {
			t.Fatal(err)
		}
		keys := a.keys()
		if len(keys) != 1 || keys[0] != want+id(1).String() {
			t.Fatalf("keys are %q, want one with %q", keys, want)
		}
		left, err := a.run("PTTL", keys[0]).AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		if got := time.Duration(left) * time.Millisecond; got >= ttl || got < ttl-time.Since(before)-2*time.Millisecond {
			t.Errorf("a value put for %v has %v left", ttl, got)
		}
		if err := c.Delete(t.Context(), id(1)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKilled: a killed server loses its values, fails calls, and starts again empty.
func TestKilled(t *testing.T) {
	s := realtest.Redis(t, nil)
	c := open(t, s.Addr(), nil)
	put(t, c, 1)
	s.Kill()
	for what, err := range map[string]error{
		"Put":    c.Put(t.Context(), id(2), nil, time.Hour),
		"Delete": c.Delete(t.Context(), id(1)),
		"Ping":   c.Ping(t.Context()),
	} {
		if err == nil {
			t.Errorf("%s of a killed server succeeds", what)
		}
	}
	if _, err := c.Get(t.Context(), id(1)); err == nil || errors.Is(err, store.ErrNotFound) {
		t.Errorf("Get of a killed server = %v", err)
	}
	s.Restart(t)
	recovers(t, c)
	lacks(t, "after a restart", c, 1)
}

func TestFlushed(t *testing.T) {
	s := realtest.Redis(t, nil)
	c := open(t, s.Addr(), nil)
	put(t, c, 1)
	administer(t, s).run("FLUSHALL")
	lacks(t, "flushed", c, 1)
	put(t, c, 1)
}

// TestHung: values whose Put failed on a hanging server are not there when it continues.
func TestHung(t *testing.T) {
	s := realtest.Redis(t, nil)
	c := open(t, s.Addr(), hasty)
	put(t, c, 0)
	s.Stop()
	const callers, calls = 50, 100
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			for n := range calls {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				if err := c.Put(ctx, id(i*calls+n), nil, time.Hour); err == nil {
					t.Error("Put on a hanging server succeeds")
				}
				cancel()
			}
		})
	}
	group.Wait()
	s.Continue()
	recovers(t, c)
	a := administer(t, s)
	eventually(t, "values that could not be put", func() error {
		if keys := a.keys(); len(keys) != 1 { // the key of recovers: the first value was being replaced
			return fmt.Errorf("%d keys are left", len(keys))
		}
		return nil
	})
}

// TestLostAnswer: a value is gone after a Put or Delete without an answer.
func TestLostAnswer(t *testing.T) {
	s := realtest.Redis(t, nil)
	p := realtest.NewProxy(t, s.Addr())
	c := open(t, p.Addr(), nil)
	a := administer(t, s)
	for what, call := range map[string]func() error{
		"Put":    func() error { return c.Put(t.Context(), id(1), []byte("new"), time.Hour) },
		"Delete": func() error { return c.Delete(t.Context(), id(1)) },
	} {
		put(t, c, 1)
		put(t, c, 2)
		reached := p.CutAfter(0)
		if err := call(); err == nil {
			t.Fatalf("%s succeeds without an answer", what)
		}
		<-reached
		if err := c.Delete(t.Context(), id(2)); err == nil {
			t.Error("Delete on a cut connection succeeds")
		}
		a.run("SET", "cardvault:code:"+id(1).String(), "as if it had not been done")
		p.Resume()
		recovers(t, c)
		for n := 1; n <= 2; n++ {
			lacks(t, what+" without an answer", c, n)
		}
	}
}

// TestReplaced: a value that could not be replaced or erased is erased later, even if
// another replica has put it since. Only the server's clock knows the order, and it may
// have stood still.
func TestReplaced(t *testing.T) {
	s := realtest.Redis(t, nil)
	p := realtest.NewProxy(t, s.Addr())
	c, other := open(t, p.Addr(), nil), open(t, s.Addr(), nil)
	const deleted, replaced = 1, 2
	put(t, other, deleted)
	put(t, other, replaced)
	p.Cut()
	if err := c.Delete(t.Context(), id(deleted)); err == nil {
		t.Error("Delete on a cut connection succeeds")
	}
	if err := c.Put(t.Context(), id(replaced), nil, time.Hour); err == nil {
		t.Error("Put on a cut connection succeeds")
	}
	<-time.After(200 * time.Millisecond)
	put(t, other, replaced)
	p.Resume()
	recovers(t, c)
	lacks(t, "a value that was deleted", other, deleted)
	lacks(t, "a value that was replaced", other, replaced)
}

// TestCrowdedOut: after any number of failed calls the deleted values are erased, and no
// other keys.
func TestCrowdedOut(t *testing.T) {
	s := realtest.Redis(t, nil)
	p := realtest.NewProxy(t, s.Addr())
	const prefix = `a\b[c]*?:`
	c := open(t, p.Addr(), &valkeycodes.Options{Prefix: prefix})
	a := administer(t, s)
	const values = 2_000
	for n := range values {
		put(t, c, n)
	}
	others := []string{"other:" + id(1).String(), prefix + "other", `a\bcde:` + id(1).String()}
	for _, key := range others {
		a.run("SET", key, "")
	}
	p.Cut()
	for n := range 1 << 16 {
		if err := c.Put(t.Context(), id(values+n), nil, time.Hour); err == nil {
			t.Fatal("Put on a cut connection succeeds")
		}
	}
	if err := c.Delete(t.Context(), id(1)); err == nil {
		t.Error("Delete on a cut connection succeeds")
	}
	p.Resume()
	recovers(t, c)
	lacks(t, "a value deleted after 65,536 failed calls", c, 1)
	keys := slices.DeleteFunc(a.keys(), func(key string) bool { return key == prefix+uuid.Max.String() }) // the key of recovers
	slices.Sort(keys)
	slices.Sort(others)
	if !slices.Equal(keys, others) {
		t.Errorf("%d keys are left, want %q", len(keys), others)
	}
	put(t, c, 1)
	<-time.After(2500 * time.Millisecond) // a second erasure would have happened by now
	holds(t, c, 1, "1")
}

// TestRefusedErase: a value that the server refuses to erase is not read, and is erased as
// soon as possible.
func TestRefusedErase(t *testing.T) {
	s := realtest.Redis(t, nil)
	c := open(t, s.Addr(), nil)
	a := administer(t, s)
	put(t, c, 1)
	a.run("ACL", "SETUSER", "default", "-del")
	if err := c.Delete(t.Context(), id(1)); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Fatalf("Delete = %v", err)
	}
	begin := time.Now()
	eventually(t, "it is still read", func() error {
		if got, err := c.Get(t.Context(), id(1)); err == nil {
			return fmt.Errorf("Get = %q", got)
		}
		return nil
	})
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it is read for %v, until the connection ends", took)
	}
	a.run("ACL", "SETUSER", "default", "+del")
	eventually(t, "it is not erased", func() error {
		if keys := a.keys(); len(keys) > 0 {
			return fmt.Errorf("%d keys are left", len(keys))
		}
		return nil
	})
}

// TestRepeatedPut: an abandoned Put does not erase the value of the next Put.
func TestRepeatedPut(t *testing.T) {
	c := open(t, realtest.Redis(t, nil).Addr(), nil)
	const values = 500
	for n := range values {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_ = c.Put(ctx, id(n), []byte("given up"), time.Hour)
		eventually(t, "Put", func() error { return c.Put(t.Context(), id(n), fmt.Append(nil, n), time.Hour) })
	}
	for n := range values {
		holds(t, c, n, fmt.Sprint(n))
	}
}

// TestQueued: a Delete abandoned while queued still erases its value.
func TestQueued(t *testing.T) {
	s := realtest.Redis(t, nil)
	c := open(t, s.Addr(), nil)
	const values = 50
	for n := range values {
		put(t, c, n)
	}
	s.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 300 { // more than run at a time
		group.Go(func() { _, _ = c.Get(ctx, id(0)) })
	}
	gaveUp := 0
	eventually(t, "no call waits for others", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		err := c.Delete(ctx, id(gaveUp))
		if err == context.DeadlineExceeded { // and not for lack of an answer
			return nil
		}
		gaveUp = (gaveUp + 1) % values
		return err
	})
	cancel()
	group.Wait()
	s.Continue()
	eventually(t, "Delete", func() error {
		if _, err := c.Get(t.Context(), id(gaveUp)); !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("Get = %v", err)
		}
		return nil
	})
}

// TestEnded: a call with an ended context changes nothing, now or later.
func TestEnded(t *testing.T) {
	c := open(t, realtest.Redis(t, nil).Addr(), nil)
	put(t, c, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := errors.Join(c.Put(ctx, id(1), nil, time.Hour), c.Delete(ctx, id(1))); !errors.Is(err, context.Canceled) {
		t.Errorf("Put, Delete = %v", err)
	}
	for range 1000 {
		holds(t, c, 1, "1")
	}
}

// TestGivenUp: a call returns when its context ends, even while another call is connecting.
func TestGivenUp(t *testing.T) {
	s := realtest.Redis(t, nil)
	o := at(s.Addr())
	var hang atomic.Bool
	connecting, gaveUp := make(chan struct{}, 100), make(chan struct{}, 100)
	o.DialCtxFn = func(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if hang.Load() {
			connecting <- struct{}{}
			<-ctx.Done()
			gaveUp <- struct{}{}
			return nil, ctx.Err()
		}
		return dialer.DialContext(ctx, "tcp", addr)
	}
	c, err := valkeycodes.Open(t.Context(), o, &valkeycodes.Options{Patience: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	hang.Store(true)
	s.Kill()
	deleted := make(chan error, 1)
	go func() { deleted <- c.Delete(t.Context(), id(1)) }()
	<-connecting // for ten seconds
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Ping = %v", err)
	}
	select {
	case <-gaveUp:
		t.Error("Ping has waited for another call to connect")
	default:
	}
	if err := <-deleted; err == nil {
		t.Error("Delete on a killed server succeeds")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// TestLateStart: a cache may be opened before its server runs.
func TestLateStart(t *testing.T) {
	s := realtest.Redis(t, nil)
	s.Kill()
	c := open(t, s.Addr(), nil)
	if err := c.Ping(t.Context()); err == nil {
		t.Error("Ping of a server that is not there succeeds")
	}
	s.Restart(t)
	recovers(t, c)
	if err := c.Ping(t.Context()); err != nil {
		t.Errorf("Ping: %v", err)
	}
}

// TestFull: a full server evicts old values or refuses new ones, by its policy.
func TestFull(t *testing.T) {
	for policy, evicts := range map[string]bool{"volatile-ttl": true, "allkeys-lru": true, "noeviction": false} {
		s := realtest.Redis(t, &realtest.RedisOptions{Settings: map[string]string{"maxmemory": "2mb", "maxmemory-policy": policy}})
		c := open(t, s.Addr(), nil)
		const values = 3_000
		failed := 0
		for n := range values {
			eventually(t, policy, func() error { // a busy machine may be too slow once
				err := c.Put(t.Context(), id(n), make([]byte, store.MaxCode), time.Hour+time.Duration(n)*time.Second)
				if err != nil && strings.Contains(err.Error(), "OOM") {
					failed++
					return nil
				}
				return err
			})
		}
		there := 0
		other := open(t, s.Addr(), nil)
		for n := range values {
			eventually(t, policy, func() error {
				_, err := other.Get(t.Context(), id(n))
				switch {
				case err == nil:
					there++
				case errors.Is(err, store.ErrNotFound):
					return nil
				}
				return err
			})
		}
		if evicts != (failed == 0) || there == 0 || there+failed > values || !evicts && there+failed != values {
			t.Errorf("%s: of %d values %d were refused and %d are there", policy, values, failed, there)
		}
	}
}

// TestErrors: an error contains nothing of the request, which a server may echo.
func TestErrors(t *testing.T) {
	s := realtest.Redis(t, nil)
	c := open(t, relay(t, nil, s.Addr(), func(client net.Conn, b []byte) {
		if string(b) == "+OK\r\n" {
			b = []byte("-ERR unknown command 'SET', with args beginning with: 'secret'\r\n")
		}
		write(client, b)
	}), nil)
	err := c.Put(t.Context(), id(1), []byte("secret"), time.Hour)
	if err == nil || err.Error() != "valkeycodes: the server refuses: ERR" {
		t.Errorf("Put = %v", err)
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
}

// TestBack: the return of a server is logged once.
func TestBack(t *testing.T) {
	s := realtest.Redis(t, nil)
	var log logged
	c := open(t, s.Addr(), &valkeycodes.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for lost := range 3 {
		recovers(t, c)
		eventually(t, "that it is back is not logged", func() error { // right after it is
			if n := log.count("level=INFO", "is back"); n != lost {
				return fmt.Errorf("%d lines after it was lost %d times", n, lost)
			}
			return nil
		})
		s.Kill()
		eventually(t, "the server is not missed", func() error {
			if _, err := c.Get(t.Context(), id(1)); err == nil || !strings.Contains(err.Error(), "cannot be used") {
				return fmt.Errorf("Get = %v", err)
			}
			return nil
		})
		s.Restart(t)
	}
}
