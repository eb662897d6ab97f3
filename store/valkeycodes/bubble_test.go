package valkeycodes_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bubble"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/store/valkeycodes"
)

// A forever is a server in a bubble that ignores the values' times: it keeps each value
// until a DEL.
type forever struct {
	mu     sync.Mutex
	dead   bool
	dialed int           // connections so far
	slow   time.Duration // delay of GET
	busy   int           // number of SCANs to refuse
	hung   bool          // answers nothing
	conns  []net.Conn
	values map[string]string
}

// openForever opens a cache on a forever, which may be dead.
func openForever(t *testing.T, dead bool) (*forever, *valkeycodes.Cache) {
	t.Helper()
	f := &forever{dead: dead, values: map[string]string{}}
	o := at("forever")
	o.DialCtxFn = f.dial
	c, err := valkeycodes.Open(t.Context(), o, &valkeycodes.Options{AllowPlaintext: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		f.die(true)
	})
	return f, c
}

func (f *forever) dial(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return nil, errors.New("no listener")
	}
	here, there := net.Pipe()
	f.dialed++
	f.conns = append(f.conns, there)
	go f.serve(there)
	return here, nil
}

// die closes its connections; die(false) ends that.
func (f *forever) die(dead bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = dead
	for _, conn := range f.conns {
		_ = conn.Close()
	}
	f.conns = nil
}

func (f *forever) hang(hung bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hung = hung
}

func (f *forever) hangs() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hung
}

func (f *forever) dials() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dialed
}

func (f *forever) has(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.values[key]
	return ok
}

func (f *forever) serve(conn net.Conn) {
	defer conn.Close()
	for r := bufio.NewReader(conn); ; {
		words, err := command(r)
		if err != nil {
			return
		}
		for f.hangs() {
			<-time.After(time.Millisecond)
		}
		answer := f.answer(words)
		if words[0] == "GET" {
			time.Sleep(f.slow)
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// command reads a command: an array of strings.
func command(r *bufio.Reader) ([]string, error) {
	size := func() (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := size()
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		length, err := size()
		if err != nil {
			return nil, err
		}
		b := make([]byte, length+len("\r\n"))
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		words[i] = string(b[:length])
	}
	return words, nil
}

func (f *forever) answer(words []string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch strings.ToUpper(words[0]) {
	case "HELLO":
		return "*2\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"
	case "CONFIG":
		off := map[string]string{"appendonly": "no", "slowlog-log-slower-than": "-1"}[words[2]]
		return "*2\r\n" + text(words[2]) + text(off)
	case "PING":
		return "+PONG\r\n"
	case "SET":
		f.values[words[1]] = words[2]
		return "+OK\r\n"
	case "GET":
		if value, ok := f.values[words[1]]; ok {
			return text(value)
		}
		return "$-1\r\n"
	case "SCAN":
		prefix, found := strings.CutSuffix(words[3], strings.Repeat("?", 36))
		if !found { // the check of a new connection
			return "*2\r\n" + text("0") + "*0\r\n"
		}
		if f.busy--; f.busy >= 0 {
			return "-BUSY\r\n"
		}
		keys, n := "", 0
		for key := range f.values {
			if strings.HasPrefix(key, prefix) {
				keys += text(key)
				n++
			}
		}
		return "*2\r\n" + text("0") + "*" + strconv.Itoa(n) + "\r\n" + keys
	case "DEL":
		for _, key := range words[1:] {
			delete(f.values, key)
		}
		return ":1\r\n"
	}
	return "-ERR unknown command\r\n"
}

func text(s string) string { return "$" + strconv.Itoa(len(s)) + "\r\n" + s + "\r\n" }

// TestConnects: a cache reconnects in the background when its server returns, even if no
// call has failed. So the first call afterwards takes no longer than usual.
func TestConnects(t *testing.T) {
	for _, test := range []struct {
		what  string
		dead  bool // at the start
		fails bool // a call
	}{
		{"a server that was not there", true, false},
		{"a server that was not there, and was missed", true, true},
		{"a server that died", false, false},
		{"a server that died, and was missed", false, true},
	} {
		bubble.Test(t, func(t *testing.T) {
			f, c := openForever(t, test.dead)
			f.die(true)
			<-time.After(10 * time.Second)
			if test.fails {
				if _, err := c.Get(t.Context(), id(1)); err == nil {
					t.Error("Get of a dead server succeeds")
				}
			}
			<-time.After(time.Hour)
			before := f.dials()
			f.die(false)
			<-time.After(3 * time.Second)
			connected := f.dials()
			if connected != before+1 {
				t.Errorf("%s: %d connections were made without a call, want one", test.what, connected-before)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := c.Put(ctx, id(1), nil, time.Minute); err != nil || f.dials() != connected {
				t.Errorf("%s: the first Put gives %v, and makes %d connections", test.what, err, f.dials()-connected)
			}
		})
	}
}

// TestNobodyWaits: once a PING has failed, no caller waits for a hanging server.
func TestNobodyWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f, c := openForever(t, false)
		put(t, c, 0)
		f.hang(true)
		const callers, calls = 50, 100
		var waited atomic.Int32
		var group sync.WaitGroup
		for i := range callers {
			group.Go(func() {
				for n := range calls {
					ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
					err := c.Put(ctx, id(i*calls+n), nil, time.Hour)
					cancel()
					switch {
					case err == nil:
						t.Error("Put on a hanging server succeeds")
					case errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "no answer"):
						waited.Add(1)
					}
				}
			})
		}
		group.Wait()
		// Each caller may wait three times: until the PING is sent, until it fails, and in
		// a call begun just before that.
		if n := waited.Load(); n < callers || n > 3*callers {
			t.Errorf("%d calls of %d waited, want one to three for each of %d callers", n, callers*calls, callers)
		}
		f.hang(false)
		recovers(t, c)
	})
}

// TestImpatient: a caller that gives up does not make the server look dead to others.
func TestImpatient(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f, c := openForever(t, false)
		put(t, c, 1)
		f.slow = 35 * time.Millisecond
		for n := range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 28*time.Millisecond)
			if n%2 > 0 {
				ctx, cancel = context.WithCancel(t.Context())
				time.AfterFunc(28*time.Millisecond, cancel)
			}
			_, err := c.Get(ctx, id(1))
			cancel()
			if err == nil {
				t.Error("Get is faster than its server")
			}
			if _, err := c.Get(t.Context(), id(1)); err != nil {
				t.Errorf("the next Get: %v", err)
			}
		}
	})
}

// TestPutAfterGivenUp: when a caller gives up its Put, a later Put under the same id is not
// erased with it.
func TestPutAfterGivenUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f, c := openForever(t, false)
		f.hang(true)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		first := make(chan error)
		go func() { first <- c.Put(ctx, id(1), []byte("old"), time.Hour) }()
		<-time.After(time.Millisecond)
		time.AfterFunc(10*time.Millisecond, func() { f.hang(false) })
		if err := c.Put(t.Context(), id(1), []byte("new"), time.Hour); err != nil {
			t.Error(err)
		}
		if err := <-first; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Put of a caller who gives up: %v", err)
		}
		<-time.After(time.Second)
		holds(t, c, 1, "new")
	})
}

// TestAgeing: a value that could not be erased is erased if the server returns within 15
// minutes. After that there is nothing to erase, since a vault keeps no code for longer.
func TestAgeing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f, c := openForever(t, false)
		const old, recent = 1, 2
		put(t, c, old)
		put(t, c, recent)
		f.die(true)
		if err := c.Delete(t.Context(), id(old)); err == nil {
			t.Error("Delete on a dead server succeeds")
		}
		<-time.After(time.Minute)
		if err := c.Delete(t.Context(), id(recent)); err == nil {
			t.Error("Delete on a dead server succeeds")
		}
		<-time.After(15*time.Minute - 10*time.Second)
		f.die(false)
		<-time.After(5 * time.Second)
		if f.has("cardvault:code:" + id(recent).String()) {
			t.Error("a value from just under 15 minutes ago is not erased")
		}
		if !f.has("cardvault:code:" + id(old).String()) {
			t.Error("a deletion from 16 minutes ago is still pending")
		}
	})
}

// TestEraseAllFails: after too many failed deletions all values must be erased. If the
// first attempt at that fails, the next one does it, and no value is used before.
func TestEraseAllFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f, c := openForever(t, false)
		put(t, c, 1)
		f.die(true)
		if err := c.Delete(t.Context(), id(1)); err == nil {
			t.Error("Delete on a dead server succeeds")
		}
		for n := range 1 << 16 {
			if err := c.Put(t.Context(), id(2+n), nil, time.Minute); err == nil {
				t.Fatal("Put on a dead server succeeds")
			}
		}
		f.busy = 2
		f.die(false)
		for range 100 {
			<-time.After(100 * time.Millisecond)
			if got, err := c.Get(t.Context(), id(1)); err == nil {
				t.Fatalf("a deleted value is %q", got)
			}
		}
		lacks(t, "after ten seconds", c, 1)
	})
}

// TestKeptTooLong: an expired code is not available, even if the server still has it.
func TestKeptTooLong(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f, c := openForever(t, false)
		keys, err := cardvault.KeyBytes(bytes.Repeat([]byte{7}, cardvault.KeySize))
		if err != nil {
			t.Fatal(err)
		}
		v, err := cardvault.New(t.Context(), memstore.New(), keys, &cardvault.Options{Codes: c, SecurityCodeTTL: 15 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		}()
		token := imports(t, v)
		for _, test := range []struct {
			wait time.Duration
			want bool
		}{{15*time.Minute - time.Millisecond, true}, {time.Millisecond, false}} {
			<-time.After(test.wait)
			if got := available(t, v, token); got != test.want {
				t.Errorf("after %v more the code is available: %v", test.wait, got)
			}
		}
		if !f.has("cardvault:code:" + token.String()) {
			t.Error("the server has not kept the value")
		}
	})
}
