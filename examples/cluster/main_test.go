//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cardvault/cardvault/examples/internal/sandboxtest"
	"github.com/cardvault/cardvault/internal/realtest"
)

// TestMain runs a cluster if a test started this binary as one.
func TestMain(m *testing.M) {
	if os.Getenv("CARDVAULT_TEST_CLUSTER") != "" {
		main()
		return
	}
	// These tests mostly wait, rather than compute.
	flag.Parse()
	if err := flag.Set("test.parallel", "64"); err != nil {
		panic(err)
	}
	os.Exit(postgres.Main(m).Run())
}

var (
	postgres = realtest.SharedPostgreSQL(&realtest.PostgreSQLOptions{Settings: map[string]string{
		"max_connections": "500", // tests run in parallel
	}})
	databases atomic.Int32
)

var quiet = slog.New(slog.DiscardHandler)

// patience limits the wait for anything in progress.
const patience = 5 * time.Minute

// backends lists the combinations that tests run on.
var backends = []struct {
	name string
	make func(t *testing.T) (store, codes string) // flags
}{
	{"memory", func(*testing.T) (store, codes string) { return "memory", "memory" }},
	{"servers", servers},
}

// servers returns an empty database and a cache of the test's own.
func servers(t *testing.T) (store, codes string) {
	t.Helper()
	return database(t, "template1"), realtest.Redis(t, nil).URL("0")
}

// database returns the URL of a fresh copy of a database.
func database(t *testing.T, of string) (url string) {
	t.Helper()
	p, name := postgres.Get(t), fmt.Sprint("test", databases.Add(1))
	p.SQL(t, "postgres", "CREATE DATABASE "+name+" TEMPLATE "+of)
	return p.URL(name)
}

// onBackends runs a test on each backend.
func onBackends(t *testing.T, test func(t *testing.T, c config)) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			c := config{
				migrate: true, replicas: 3, addr: "127.0.0.1:0", data: t.TempDir(),
				securityCodeTTL: 10 * time.Minute, sessionTTL: 15 * time.Minute,
			}
			c.store, c.codes = b.make(t)
			test(t, c)
		})
	}
}

// launch starts a cluster in this process. It returns the cluster, and programs that use
// its replicas without the proxy.
func launch(t *testing.T, c config) (cl *cluster, replicas []*sandboxtest.Program) {
	t.Helper()
	cl, err := open(t.Context(), &c, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.close(); err != nil {
			t.Error(err)
		}
	})
	if err := cl.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, at := range cl.at {
		p := &sandboxtest.Program{Credentials: *cl.credentials}
		p.BaseURL = "http://" + at
		replicas = append(replicas, p)
	}
	return cl, replicas
}

// A process is a cluster, a replica or a proxy in a process of its own.
type process struct {
	*exec.Cmd
	sandboxtest.Program
	log *output
}

// startProcess starts one with flags. If data is not empty, it waits until the process is
// ready and reads the credentials in that directory.
func startProcess(t *testing.T, data string, flags ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0], flags...), log: &output{more: make(chan struct{})}}
	p.Env = append(os.Environ(), "CARDVAULT_TEST_CLUSTER=1")
	p.Stderr = p.log
	stdout, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.ProcessState == nil {
			p.kill(t)
		}
		if t.Failed() {
			t.Logf("%s says:\n%s", strings.Join(flags, " "), p.log)
		}
	})
	if data == "" {
		return p
	}
	for lines := bufio.NewScanner(stdout); !strings.HasSuffix(lines.Text(), sandboxtest.LastLine); {
		if !lines.Scan() {
			_ = p.Wait() // its output counts
			t.Fatalf("ended before it was ready: %s", p.log)
		}
	}
	go io.Copy(io.Discard, stdout)
	p.read(t, data)
	return p
}

// read reads the credentials in a data directory.
func (p *process) read(t *testing.T, data string) {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(data, "sandbox.json"))
	if err == nil {
		err = json.Unmarshal(file, &p.Credentials)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// kill ends the process as a crash would.
func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = p.Wait() // killed
}

// signal sends a signal to the process.
func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// stop ends the process as an operator does.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	if err := p.wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// wait waits for the process to end, and kills it if it does not.
func (p *process) wait() error {
	defer time.AfterFunc(patience, func() { _ = p.Process.Kill() }).Stop()
	return p.Wait()
}

// flags returns the flags of a process with a config.
func (c *config) flags(more ...string) []string {
	return slices.Concat([]string{"-store", c.store, "-codes", c.codes, "-data", c.data}, more)
}

// An output collects what a process prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed and replaced with each write
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.more)
	o.more = make(chan struct{})
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// wait waits until a text was printed n times.
func (o *output) wait(t *testing.T, text string, n int) {
	t.Helper()
	end := time.After(patience)
	for {
		o.mu.Lock()
		said, more := strings.Count(o.text.String(), text), o.more
		o.mu.Unlock()
		if said >= n {
			return
		}
		select {
		case <-more:
		case <-end:
			t.Fatalf("%q is not printed: %s", text, o)
		}
	}
}
