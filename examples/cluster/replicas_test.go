//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/examples/internal/sandboxtest"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/cardvault/cardvault/webhook/webhooktest"
)

// A session made by one replica can be read at the next and completed at a third. All have
// the security code until one consumes it.
func TestSessions(t *testing.T) {
	onBackends(t, func(t *testing.T, c config) {
		_, replicas := launch(t, c)
		key := replicas[0].Accounts[0].APIKey
		code := func(p *sandboxtest.Program, token string) bool {
			return p.Want(t, 200, key, "GET", "/tokens/"+token+"/security-code", "")["security_code_available"].(bool)
		}
		for i := range replicas {
			maker, reader, completer := replicas[i], replicas[(i+1)%3], replicas[(i+2)%3]
			enter := func() (session, payload, token string) {
				session = maker.Want(t, 200, key, "POST", "/tokens/session", `{}`)["session_id"].(string)
				body, err := json.Marshal(reader.Want(t, 200, "", "GET", "/sessions/"+session, ""))
				if err != nil {
					t.Fatal(err)
				}
				payload = transcript.Encrypt(t, &transcript.Answer{Status: 200, Body: string(body)},
					`{"account_number":"4242424242424242","expiry_month":4,"expiry_year":2031,"security_code":"737"}`, session)
				done := completer.Want(t, 200, "", "POST", "/sessions/"+session+"/complete-action",
					`{"action":"tokenize_card","result":{"enc_payload":"`+payload+`"}}`)
				return session, payload, done["data"].(map[string]any)["token_id"].(string)
			}

			session, payload, token := enter()
			missing := func(p *sandboxtest.Program) bool { return !code(p, token) }
			for end := time.Now().Add(patience); slices.ContainsFunc(replicas, missing); {
				if time.Now().After(end) {
					t.Fatal("a replica does not have the security code")
				}
				session, payload, token = enter() // a slow cache misses the code, and the card is stored all the same
			}

			for _, p := range replicas {
				p.Get(t, token)
			}
			status, end := 0, time.Now().Add(patience)
			for status != 204 { // 503: the cache is slow
				var err error
				status, _, err = maker.Do(key, "POST", "/tokens/"+token+"/consume", "")
				if err != nil || status != 204 && status != 503 || time.Now().After(end) {
					t.Fatalf("consume is answered with %d, %v", status, err)
				}
			}
			for _, p := range replicas {
				if code(p, token) {
					t.Error("a replica has a security code that is consumed")
				}
			}
			maker.Want(t, 409, "", "POST", "/sessions/"+session+"/complete-action",
				`{"action":"tokenize_card","result":{"enc_payload":"`+payload+`"}}`)
		}
	})
}

// An API key revoked at one replica is refused by all from then on.
func TestRevocation(t *testing.T) {
	onBackends(t, func(t *testing.T, c config) {
		_, replicas := launch(t, c)
		key := replicas[0].Accounts[0].APIKey
		for i := range 12 {
			made := replicas[i%3].Want(t, 200, key, "POST", "/api-keys", `{"label":"x","scopes":["tokens:read"]}`)
			for _, p := range replicas {
				p.Want(t, 200, made["key"].(string), "GET", "/tokens?limit=1", "")
			}
			replicas[(i+1)%3].Want(t, 204, key, "DELETE", "/api-keys/"+made["id"].(string), "")
			for _, p := range replicas {
				p.Want(t, 401, made["key"].(string), "GET", "/tokens?limit=1", "")
			}
		}
	})
}

// One idempotency key makes one token, even when used at several replicas at once.
func TestIdempotency(t *testing.T) {
	onBackends(t, func(t *testing.T, c config) {
		_, replicas := launch(t, c)
		account := replicas[0].Accounts[0].APIKey
		total := func() float64 {
			return replicas[0].Want(t, 200, account, "GET", "/tokens?limit=1", "")["pagination"].(map[string]any)["total_items"].(float64)
		}
		const rounds = 20
		answered := 0
		for i := range rounds {
			key := fmt.Sprint("once ", i)
			ids := make(chan string, 6)
			var group sync.WaitGroup
			for n := range cap(ids) {
				group.Go(func() {
					id, err := replicas[n%3].ImportOnce(account, key)
					if err != nil && !strings.Contains(err.Error(), "409") { // in progress
						t.Error(err)
					}
					ids <- id
				})
			}
			group.Wait()
			close(ids)
			first := ""
			for id := range ids {
				if id == "" {
					continue
				}
				answered++
				if first == "" {
					first = id
				}
				if id != first {
					t.Error("an idempotency key has made two tokens")
				}
			}
			if again, err := replicas[i%3].ImportOnce(account, key); err != nil || first != "" && again != first {
				t.Errorf("a repeated import has made another token: %v", err)
			}
		}
		if n := total(); n != rounds {
			t.Errorf("%d keys have made %v tokens", rounds, n)
		}
		if answered == 0 {
			t.Error("no import was answered")
		}
	})
}

// While all replicas run each event is delivered once, in the order of its token.
func TestDeliveries(t *testing.T) {
	onBackends(t, func(t *testing.T, c config) {
		_, replicas := launch(t, c)
		hook := webhooktest.New()
		key := replicas[0].Accounts[0].APIKey
		registered := replicas[1].Want(t, 200, key, "POST", "/webhooks", `{"url":"`+hook.Start(t)+`"}`)
		const each = 20
		var group sync.WaitGroup
		for _, p := range replicas {
			group.Go(func() {
				for range each {
					status, token, err := p.Do(key, "POST", "/cde-import", sandboxtest.CardJSON)
					if err == nil && status == 200 {
						status, _, err = p.Do(key, "PATCH", "/tokens/"+token["id"].(string), `{"business_key":"b"}`)
					}
					if err != nil || status != 200 {
						t.Errorf("%d, %v", status, err)
						return
					}
				}
			})
		}
		group.Wait()
		const want = 3 * each * 3 // created, patched, active
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := hook.Wait(ctx, want); err != nil {
			t.Fatalf("%d deliveries of %d: %v", len(hook.Deliveries()), want, err)
		}
		// A second delivery of any event would come before the last event of another token.
		replicas[2].Follow(t, replicas[2].Import(t, "4242424242424242"), "pending", "active")
		if _, err := hook.Wait(ctx, want+2); err != nil {
			t.Fatal(err)
		}
		ids, last := map[string]bool{}, map[string]float64{}
		for _, d := range hook.Deliveries() {
			id := d.Header.Get("Webhook-Id")
			if ids[id] {
				t.Errorf("event %s is delivered twice", id)
			}
			ids[id] = true
			var event struct {
				Sequence float64
				Token    struct{ ID string }
			}
			if err := json.Unmarshal(d.Body, &event); err != nil {
				t.Fatal(err)
			}
			if event.Sequence <= last[event.Token.ID] {
				t.Errorf("event %v of a token comes after %v", event.Sequence, last[event.Token.ID])
			}
			last[event.Token.ID] = event.Sequence
		}
		if len(ids) != want+2 || len(last) != 3*each+1 {
			t.Errorf("%d events of %d tokens, want %d of %d", len(ids), len(last), want+2, 3*each+1)
		}
		log := replicas[0].Want(t, 200, key, "GET", "/webhooks/"+registered["id"].(string)+"/deliveries?limit=1", "")
		if n := log["pagination"].(map[string]any)["total_items"]; n != float64(want+2) {
			t.Errorf("the log has %v deliveries, want %d", n, want+2)
		}
	})
}

// After a change of the database its old credentials are useless: new ones are made. A
// replica of an existing cluster leaves that to -setup.
func TestAnotherDatabase(t *testing.T) {
	onBackends(t, func(t *testing.T, c config) {
		old := startProcess(t, c.data, c.flags("-addr", "127.0.0.1:0")...)
		old.stop(t)
		if c.store != "memory" {
			c.store = database(t, "template1")
			replica := startProcess(t, "", c.flags("-replicas", "1", "-listen", "127.0.0.1:0")...)
			if err := replica.wait(); err == nil || !strings.Contains(replica.log.String(), "sandbox.json") {
				t.Errorf("a replica without a setup: %v: %s", err, replica.log)
			}
		}
		p := startProcess(t, c.data, c.flags("-addr", "127.0.0.1:0")...)
		for i, a := range p.Accounts {
			if a == old.Accounts[i] {
				t.Error("an account of the old database")
			}
			p.Want(t, 200, a.APIKey, "GET", "/tokens?limit=1", "")
		}
		p.stop(t)
	})
}

// Other replicas act on a change at once, without polling.
func TestWake(t *testing.T) {
	stores, cache := openStores(t, "memory")
	sim, err := simnet.New(t.Context(), memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	var vaults []*cardvault.Vault
	for _, s := range stores[:2] {
		keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
		if err != nil {
			t.Fatal(err)
		}
		v, err := cardvault.New(t.Context(), s, keys, &cardvault.Options{Mode: cardvault.Sandbox, Network: sim, Codes: cache})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
		vaults = append(vaults, v)
	}
	writes, works := vaults[0], vaults[1]
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- works.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	given := cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, 0), Expiry: card.Expiry{Month: 12, Year: 2030}}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	late := time.After(100 * time.Second) // Run polls every 30: five cards that wait for that take longer
	for n := range 5 {
		token, err := writes.Import(t.Context(), given, nil)
		for err == nil && token.NetworkTokenStatus != network.Active {
			select {
			case <-look.C:
				token, err = writes.Get(t.Context(), token.ID)
			case <-late:
				t.Fatalf("card %d waits for the next poll", n+1)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A page loaded from one replica works at the others.
func TestPage(t *testing.T) {
	onBackends(t, func(t *testing.T, c config) {
		_, replicas := launch(t, c)
		pageOf(t, replicas...)
	})
}

// pageOf loads the page from one replica and asks all for news.
func pageOf(t *testing.T, replicas ...*sandboxtest.Program) {
	t.Helper()
	loaded, err := http.Get(replicas[0].BaseURL + "/")
	if err != nil {
		t.Fatal(err)
	}
	loaded.Body.Close()
	for _, p := range replicas {
		r, err := http.NewRequest("GET", p.BaseURL+"/sandbox/live", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range loaded.Cookies() {
			r.AddCookie(c)
		}
		w, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		w.Body.Close()
		if w.StatusCode != http.StatusOK {
			t.Errorf("a replica answers the page %d", w.StatusCode)
		}
	}
}

// A counter counts requests to a network and events of tokens.
type counter struct {
	*simnet.Network

	mu     sync.Mutex
	asked  map[string]int // by idempotency key
	events map[string]int // by token, type and reason
	kinds  map[string]int // by type and reason
	more   chan struct{}  // closed and replaced with each event
}

func (c *counter) Provision(ctx context.Context, r *network.ProvisionRequest) (*network.Token, error) {
	c.mu.Lock()
	c.asked[r.IdempotencyKey]++
	c.mu.Unlock()
	return c.Network.Provision(ctx, r)
}

func (c *counter) Event(_ context.Context, e *cardvault.Event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := fmt.Sprint(e.Type, " ", e.Reason)
	c.events[fmt.Sprint(e.TokenID, " ", kind)]++
	c.kinds[kind]++
	close(c.more)
	c.more = make(chan struct{})
	return nil
}

// wait waits for n events of a kind.
func (c *counter) wait(t *testing.T, kind string, n int) {
	t.Helper()
	end := time.After(patience)
	for {
		c.mu.Lock()
		seen, more := c.kinds[kind], c.more
		c.mu.Unlock()
		if seen >= n {
			return
		}
		select {
		case <-more:
		case <-end:
			t.Fatalf("%d events %s, want %d", seen, kind, n)
		}
	}
}

// Provisioning and expiry happen once, at any of the replicas.
func TestWorkIsDoneOnce(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, c config) {
		b, err := openBackend(t.Context(), &c, quiet)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.close(); err != nil {
				t.Error(err)
			}
		})
		sim, err := simnet.New(t.Context(), b.simulator, nil)
		if err != nil {
			t.Fatal(err)
		}
		count := &counter{Network: sim, asked: map[string]int{}, events: map[string]int{}, kinds: map[string]int{}, more: make(chan struct{})}
		var vaults []*cardvault.Vault
		running, stop := context.WithCancel(t.Context())
		var group sync.WaitGroup
		t.Cleanup(group.Wait)
		t.Cleanup(stop)
		for range 3 {
			o, err := b.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			keys, err := cardvault.KeyBytes(make([]byte, cardvault.KeySize))
			if err != nil {
				t.Fatal(err)
			}
			v, err := cardvault.New(t.Context(), o.store, keys, &cardvault.Options{
				Mode: cardvault.Sandbox, Network: count, Events: count, Codes: o.codes,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				stop()
				group.Wait()
				if err := v.Close(); err != nil {
					t.Error(err)
				}
				if err := o.close(); err != nil {
					t.Error(err)
				}
			})
			group.Go(func() {
				if err := v.Run(running); err != nil {
					t.Error(err)
				}
			})
			vaults = append(vaults, v)
		}
		const each = 40
		given := cardvault.Card{PAN: simnet.ScenarioPAN(card.VISA, 0), Expiry: card.Expiry{Month: 12, Year: 2030}}
		var imports sync.WaitGroup
		for _, v := range vaults {
			imports.Go(func() {
				for range each {
					if _, err := v.Import(t.Context(), given, nil); err != nil {
						t.Error(err)
					}
					session, err := v.CreateSession(t.Context(), &cardvault.SessionOptions{TokenTTL: time.Second})
					if err == nil {
						_, err = v.Tokenize(t.Context(), session.ID, given)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		imports.Wait()
		const changed, expired = "token.updated network_token_status_changed", "token.deleted expired"
		count.wait(t, changed, 3*each)
		count.wait(t, expired, 3*each)
		// A second execution would be reported before this event.
		if _, err := vaults[0].Import(t.Context(), given, nil); err != nil {
			t.Fatal(err)
		}
		count.wait(t, changed, 3*each+1)
		count.mu.Lock()
		defer count.mu.Unlock()
		for what, n := range count.events {
			if n != 1 {
				t.Errorf("%s is reported %d times", what, n)
			}
		}
		for _, n := range count.asked {
			if n != 1 {
				t.Errorf("a network token is requested %d times", n)
			}
		}
		if len(count.asked) != 3*each+1 || count.kinds[expired] != 3*each || count.kinds[changed] != 3*each+1 {
			t.Errorf("%d network tokens requested, events %v", len(count.asked), count.kinds)
		}
	})
}

// A load sends requests of many concurrent clients until it ends. It counts the wrong
// answers.
type load struct {
	end    chan struct{}
	group  sync.WaitGroup
	mu     sync.Mutex
	served int
	failed []string
}

func startLoad(p *sandboxtest.Program, clients int) *load {
	l := &load{end: make(chan struct{})}
	key := p.Accounts[0].APIKey
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	for range clients {
		l.group.Go(func() {
			defer transport.CloseIdleConnections()
			do := func(want int, method, path, body string) (answer map[string]any) {
				status, answer, err := patiently(transport, key, method, p.BaseURL+path, body)
				l.mu.Lock()
				defer l.mu.Unlock()
				l.served++
				if err != nil || status != want {
					l.failed = append(l.failed, fmt.Sprintf("%s %s: %d %v %v", method, path, status, answer["classifier"], err))
				}
				return answer
			}
			for {
				select {
				case <-l.end:
					return
				default:
				}
				id, ok := do(200, "POST", "/cde-import", sandboxtest.CardJSON)["id"].(string)
				if !ok {
					continue
				}
				do(200, "GET", "/tokens/"+id, "")
				do(200, "PATCH", "/tokens/"+id, `{"business_key":"b"}`)
				do(200, "GET", "/tokens?limit=5", "")
				do(204, "DELETE", "/tokens/"+id, "")
				do(404, "GET", "/tokens/"+id, "")
			}
		})
	}
	return l
}

// patiently repeats a request that has waited in vain for the database to take a write. A busy
// machine causes that, and nothing was done. A stopping replica would say so at once.
func patiently(transport *http.Transport, key, method, url, body string) (status int, answer map[string]any, err error) {
	for range 5 {
		begin := time.Now()
		status, answer, err = request(transport, key, method, url, body)
		if err != nil || answer["classifier"] != "SERVICE_UNAVAILABLE" || time.Since(begin) < 10*time.Second {
			break
		}
	}
	return status, answer, err
}

// stop ends the load and returns the number of served requests, and the failed ones.
func (l *load) stop() (served int, failed []string) {
	close(l.end)
	l.group.Wait()
	return l.served, l.failed
}

// answered returns the number of requests answered so far.
func (l *load) answered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.served
}

// request makes a request and returns the status and the decoded answer.
func request(transport *http.Transport, key, method, url, body string) (int, map[string]any, error) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("X-Api-Key", key)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	w, err := transport.RoundTrip(r)
	if err != nil {
		return 0, nil, err
	}
	defer w.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(w.Body).Decode(&answer); err != nil && err != io.EOF { // the body may be empty
		return 0, nil, err
	}
	return w.StatusCode, answer, nil
}

// While the replicas restart one after the other, no request fails.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, c config) {
		p := startProcess(t, c.data, c.flags("-addr", "127.0.0.1:0")...)
		l := startLoad(&p.Program, 16)
		rounds := 0
		for ; rounds < 3 || l.answered() < 1000; rounds++ {
			p.signal(t, syscall.SIGHUP)
			p.log.wait(t, "the replicas were restarted", rounds+1)
		}
		served, failed := l.stop()
		if len(failed) > 0 {
			t.Errorf("of %d requests %d failed, such as %s", served, len(failed), failed[0])
		}
		t.Logf("%d requests while replicas restarted %d times, %d failed", served, 3*rounds, len(failed))
		p.stop(t)
	})
}

// The sandbox works as in examples/server.
func TestScenarios(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, c config) {
		t.Parallel()
		p := startProcess(t, c.data, c.flags("-addr", "127.0.0.1:0")...)
		sandboxtest.Scenarios(t, &p.Program)
	})
}

// TestUnusedConnection: a proxy may first use a connection long after it has opened it. A replica that
// closes it by then may do so while a request is on its way.
func TestUnusedConnection(t *testing.T) {
	t.Parallel()
	cl, replicas := launch(t, config{
		store: "memory", codes: "memory", data: t.TempDir(), replicas: 1, addr: "127.0.0.1:0",
		securityCodeTTL: time.Minute, sessionTTL: time.Minute,
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(replicas[0].BaseURL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if server, unused := cl.replicas[0].server, cl.proxy.transport.IdleConnTimeout; server.ReadHeaderTimeout < 2*unused || server.IdleTimeout < 2*unused {
		t.Errorf("the proxy keeps unused connections for %v, the replica for %v and %v", unused, server.ReadHeaderTimeout, server.IdleTimeout)
	}
	<-time.After(7 * time.Second)
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET "+readyPath+" HTTP/1.1\r\nHost: vault.example\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 204 ") {
		t.Errorf("the replica answers %q, %v", line, err)
	}
}

// A second signal stops at once, without waiting for requests.
func TestStoppedTwice(t *testing.T) {
	t.Parallel()
	c := config{store: "memory", codes: "memory", data: t.TempDir()}
	p := startProcess(t, c.data, c.flags("-addr", "127.0.0.1:0")...)
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.BaseURL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "POST /cde-import HTTP/1.1\r\nHost: vault.example\r\nX-Api-Key: %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n", p.Accounts[0].APIKey); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("no replica waits for the body: %q, %v", line, err)
	}
	p.signal(t, syscall.SIGTERM)
	p.log.wait(t, "stopping", 1)
	ended := make(chan error, 1)
	go func() { ended <- p.wait() }()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for ok := false; !ok; {
		select {
		case <-again.C:
			_ = p.Process.Signal(syscall.SIGTERM) // it may have ended
		case err = <-ended:
			ok = true
		}
	}
	if s, ok := p.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGTERM {
		t.Errorf("the signal does not end it: %v", err)
	}
}

// A stopping cluster finishes the work in progress.
func TestStopped(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, c config) {
		t.Parallel()
		p := startProcess(t, c.data, c.flags("-addr", "127.0.0.1:0")...)
		key := p.Accounts[0].APIKey
		k := p.Follow(t, p.Import(t, "4111110000000427"), "pending", "active")
		received := make(chan struct{})
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got100Continue: func() { close(received) }, // a replica reads the body
		})
		r, err := http.NewRequestWithContext(ctx, "POST", p.BaseURL+"/tokens/"+k.ID()+"/payment-data",
			strings.NewReader(`{"amount":1999,"currency_code":"EUR","reference":"order 7"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Api-Key", key)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Expect", "100-continue")
		answered := make(chan error, 1)
		go func() {
			w, err := (&http.Transport{ExpectContinueTimeout: time.Minute}).RoundTrip(r)
			if err == nil {
				defer w.Body.Close()
				var answer map[string]any
				// On a busy machine the network may be given up. The caller hears of that, too.
				if err = json.NewDecoder(w.Body).Decode(&answer); err == nil && answer["success"] != true && !strings.Contains(fmt.Sprint(answer), "timeout") {
					err = fmt.Errorf("%d %v", w.StatusCode, answer)
				}
			}
			answered <- err
		}()
		select {
		case <-received:
		case err := <-answered:
			t.Fatalf("the request ended early: %v", err)
		}
		p.stop(t)
		if err := <-answered; err != nil {
			t.Errorf("the request was cut off: %v", err)
		}
	})
}
