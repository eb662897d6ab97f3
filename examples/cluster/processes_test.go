//go:build unix

package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cardvault/cardvault/examples/internal/sandboxtest"
	"github.com/cardvault/cardvault/internal/realtest"
)

// A fleet is three replicas and their proxy, each in a process of its own.
type fleet struct {
	config   config
	proxy    *process
	replicas [3]*process
	at       [3]string
	base     string
}

// startFleet starts a fleet on servers of its own, and waits until it accepts requests.
func startFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{base: "http://" + realtest.Address(t)}
	f.config.data = t.TempDir()
	f.config.store, f.config.codes = servers(t)
	setup := startProcess(t, "", f.config.flags("-base-url", f.base, "-setup")...)
	if err := setup.wait(); err != nil {
		t.Fatalf("-setup: %v: %s", err, setup.log)
	}
	for i := range f.replicas {
		f.at[i] = realtest.Address(t)
		f.start(t, i)
	}
	f.proxy = startProcess(t, "", "-proxy", fmt.Sprintf("http://%s,http://%s,http://%s", f.at[0], f.at[1], f.at[2]), "-addr", f.base[len("http://"):], "-probe-within", "1m")
	f.proxy.read(t, f.config.data)
	f.await(t)
	return f
}

// start starts a replica.
func (f *fleet) start(t *testing.T, i int) {
	t.Helper()
	f.replicas[i] = startProcess(t, f.config.data, f.config.flags("-base-url", f.base, "-replicas", "3", "-listen", f.at[i], "-migrate=false", "-leaving", "5s")...)
}

// await waits until the proxy has a replica.
func (f *fleet) await(t *testing.T) {
	t.Helper()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(patience); ; <-look.C {
		status, _, err := f.proxy.Do(f.proxy.Accounts[0].APIKey, "GET", "/tokens?limit=1", "")
		if err == nil && status == 200 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the proxy answers %d, %v", status, err)
		}
	}
}

// direct returns a program that uses one replica without the proxy.
func (f *fleet) direct(i int) *sandboxtest.Program {
	p := &sandboxtest.Program{Credentials: f.proxy.Credentials}
	p.BaseURL = "http://" + f.at[i]
	return p
}

// leaves stops a replica, and checks that the replica first reports itself as leaving while
// it still accepts requests. That takes long enough for a proxy that asks less often than
// ours.
func (f *fleet) leaves(t *testing.T, i int) {
	t.Helper()
	began, slowest := time.Now(), time.Duration(0) // between two questions
	f.replicas[i].signal(t, syscall.SIGTERM)
	ask := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	const enough = 3
	said := 0
	for said < enough {
		answer, err := ask.Get("http://" + f.at[i] + readyPath)
		slowest, began = max(slowest, time.Since(began)), time.Now()
		if err != nil {
			break
		}
		answer.Body.Close()
		if answer.StatusCode == http.StatusServiceUnavailable {
			said++
		}
		<-look.C
	}
	if t.Logf("a stopping replica has reported it %d times, asked after %v at most", said, slowest); said < enough && slowest < time.Second { // else this was kept from asking
		t.Errorf("a stopping replica has reported it %d times, want %d", said, enough)
	}
	if err := f.replicas[i].wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// TestFleet stops and restarts replicas one after the other, in processes of their own,
// with SIGTERM. No request fails.
func TestFleet(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	pageOf(t, f.direct(0), f.direct(1), f.direct(2))
	for _, p := range []*sandboxtest.Program{f.direct(0), &f.proxy.Program} {
		p.Want(t, 204, "", "GET", readyPath, "")
		p.Want(t, 404, "", "POST", readyPath, "") // it is not part of the API
	}
	l := startLoad(&f.proxy.Program, 8)
	for i := range f.replicas {
		before := l.answered()
		f.leaves(t, i)
		f.proxy.log.wait(t, "a replica accepts no requests", i+1)
		f.start(t, i)
		f.proxy.log.wait(t, "a replica accepts requests", len(f.replicas)+i+1)
		for l.answered() < before+100 {
			<-time.After(10 * time.Millisecond)
		}
	}
	served, failed := l.stop()
	if len(failed) > 0 {
		t.Errorf("of %d requests %d failed, such as %s", served, len(failed), failed[0])
	}
	t.Logf("%d requests while three replicas were stopped and started, %d failed", served, len(failed))
	f.proxy.stop(t)
}

// TestKilled kills a replica while it requests network tokens. Others take over when its
// lease expires, and the network makes one for each card.
func TestKilled(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	victim, other := f.direct(0), f.direct(1)
	// asks has the victim request network tokens and pauses it. It returns whether all
	// requests are still in progress: a busy machine may be too slow.
	var tokens []sandboxtest.Token
	asks := func() bool {
		tokens = nil
		for range 5 {
			tokens = append(tokens, victim.Import(t, "4111110000000500")) // takes two seconds
		}
		// The first claims are still in progress when the work of a later import is done.
		victim.Follow(t, victim.Import(t, "4242424242424242"), "pending", "active")
		f.replicas[0].signal(t, syscall.SIGSTOP)
		return !slices.ContainsFunc(tokens, func(k sandboxtest.Token) bool {
			return other.Get(t, k.ID()).State() != "pending"
		})
	}
	for tries := 1; !asks(); tries++ {
		if tries == 60 {
			t.Fatal("no request is in progress when the replica should be killed")
		}
		f.replicas[0].signal(t, syscall.SIGCONT)
	}
	f.replicas[0].kill(t)
	key := other.Accounts[0].APIKey
	for i, k := range tokens {
		tokens[i] = other.Follow(t, k, "pending", "active")
	}
	for _, k := range tokens {
		simulated := "/simulator/tokens/" + k.ID() + "/delete"
		other.Want(t, 202, key, "POST", simulated, "")
		// The vault that repeats the request also looks up the network token. If it finds
		// the deletion before the notice has arrived, the owner of the deletion is unknown.
		if now := other.Until(t, k, "network_token_status"); now["network_token_status"] != "deleted" {
			t.Errorf("it is %q after it was deleted", now.State())
		}
		other.Want(t, 409, key, "POST", simulated, "") // the network token existed
	}
	f.await(t) // without the killed replica
}

// A cluster that cannot start prints the reason, and ends.
func TestCannotStart(t *testing.T) {
	store, codes := servers(t)
	persists := realtest.Redis(t, &realtest.RedisOptions{Settings: map[string]string{"appendonly": "yes"}}).URL("0")
	for what, flags := range map[string][]string{
		"a database without a server":   {"-store", "postgres://cardvault@" + realtest.Address(t) + "/vault?sslmode=disable", "-codes", codes},
		"a database without tables":     {"-store", database(t, "template1"), "-codes", codes, "-migrate=false"},
		"a cache that writes to a disk": {"-store", store, "-codes", persists},
		"no setup":                      {"-store", store, "-codes", codes, "-replicas", "1", "-listen", "127.0.0.1:0"},
	} {
		p := startProcess(t, "", append(flags, "-addr", "127.0.0.1:0", "-data", t.TempDir())...)
		err := p.wait()
		said := strings.TrimSpace(p.log.String())
		if p.ProcessState.ExitCode() != 1 || !strings.Contains(said, "cluster: ") || strings.Contains(said, "goroutine") {
			t.Errorf("%s: %v: %s", what, err, said)
		}
		t.Logf("%s: %s", what, said[strings.LastIndex(said, "cluster: "):])
	}
}
