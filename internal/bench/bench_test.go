package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/bench/table"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// TestMain also is the processes that import or seal records until they are killed, and a replica,
// and stands in for OpenBao.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "-replica" {
		if err := runReplica(context.Background(), os.Getenv("BENCH_POSTGRES"), os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 3 && os.Args[1] == "-import-until-killed" {
		fmt.Fprintln(os.Stderr, (&bench{dir: os.Args[2]}).importUntilKilled())
		os.Exit(1)
	}
	if len(os.Args) == 3 && os.Args[1] == "-reseal-until-killed" {
		fmt.Fprintln(os.Stderr, (&bench{dir: os.Args[2]}).resealUntilKilled())
		os.Exit(1)
	}
	if len(os.Args) == 4 && os.Args[1] == "server" && os.Args[2] == "-config" {
		fmt.Fprintln(os.Stderr, actAsOpenBao(os.Args[3]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestGenerator: requests arrive whole, and answers are read with a length, in chunks
// and without a body, one after another on one connection.
func TestGenerator(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{} // addresses of connections
	long := bytes.Repeat([]byte("0123456789"), 5000)
	c, stop, err := client(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.RemoteAddr] = true
		mu.Unlock()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		switch r.URL.Path {
		case "/echo":
			fmt.Fprintf(w, "%s %s %s %q", r.Method, r.Header.Get("X-Api-Key"), r.Header.Get("Content-Type"), body)
		case "/long":
			w.Write(long[:len(long)/2])
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			w.Write(long[len(long)/2:])
		case "/none":
			w.WriteHeader(http.StatusNoContent)
		default:
			http.Error(w, "there is nothing", http.StatusNotFound)
		}
	}), "a key")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	for range 2 {
		for _, test := range []struct {
			method, path string
			body         []byte
			want         string
		}{
			{"POST", "/echo", []byte("a body"), `POST a key application/json "a body"`},
			{"GET", "/echo", nil, `GET a key  ""`},
			{"GET", "/long", nil, string(long)},
			{"DELETE", "/none", nil, ""},
		} {
			got, err := c.do(0, test.method, test.path, test.body)
			if err != nil || string(got) != test.want {
				t.Fatalf("%s %s = %.100q, %v", test.method, test.path, got, err)
			}
		}
	}
	conns := func() int { mu.Lock(); defer mu.Unlock(); return len(seen) }
	if n := conns(); n != 1 {
		t.Errorf("%d connections", n)
	}
	if _, err := c.do(0, "GET", "/nowhere", nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("GET /nowhere: %v", err)
	}
	if _, err := c.do(1, "GET", "/none", nil); err != nil || conns() != 2 {
		t.Errorf("another goroutine: %d connections, %v", conns(), err)
	}
}

// TestGeneratorGarbage: an answer that is cut off or not HTTP is an error.
func TestGeneratorGarbage(t *testing.T) {
	for _, answer := range []string{
		"", "garbage\r\n\r\n", "HTTP/1.1 2x0 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if _, err := conn.Read(make([]byte, 1024)); err == nil {
				io.WriteString(conn, answer)
			}
		}()
		c := &caller{address: l.Addr().String()}
		if got, err := c.do(0, "GET", "/", nil); err == nil {
			t.Errorf("%q is read as %q", answer, got)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRace: contenders take turns in both orders, and rows have a figure for each round.
func TestRace(t *testing.T) {
	b := &bench{table: &table.Table{Rounds: 3}, span: time.Millisecond, part: "import"}
	var order []string
	var settled []int
	turn := func(name string) contender {
		return contender{name: name,
			ready:  func(int) error { order = append(order, name); return nil },
			run:    func(int) error { time.Sleep(100 * time.Microsecond); return nil },
			settle: func(calls int) error { settled = append(settled, calls); return nil }}
	}
	lanes, err := b.race(2, turn("a"), turn("b"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, ""); got != "abbaab" {
		t.Errorf("the order is %s", got)
	}
	if len(settled) != 6 || slices.Min(settled) < 1 {
		t.Errorf("settled after %v calls", settled)
	}

	b.ratio("import/2", 2, least(.6), lanes[0], lanes[1])
	r := b.table.Rows[0]
	if r.Part != "import" || r.At != 2 || len(r.Rounds) != 3 || r.What != "a" || r.Against != "b" {
		t.Errorf("row %+v", r)
	}
	for i, d := range r.Rounds {
		if d.Figure != lanes[0].samples[i].perSecond/lanes[1].samples[i].perSecond || d.Ours <= 0 || d.OursP99 <= 0 {
			t.Errorf("round %+v", d)
		}
	}

	broken := contender{name: "broken", run: func(int) error { return errors.New("it breaks") }}
	if _, err := b.race(2, broken); err == nil || !strings.Contains(err.Error(), "broken: it breaks") {
		t.Errorf("a broken contender: %v", err)
	}
}

// TestSupply: each item is used once, and a measurement ends when none is left.
func TestSupply(t *testing.T) {
	var s supply[int64]
	var made atomic.Int64
	if err := s.fill(1000, func() (int64, error) { return made.Add(1), nil }); err != nil {
		t.Fatal(err)
	}
	var sum atomic.Int64
	_, latencies, err := rate(8, time.Hour, func(int) error {
		n, err := s.take()
		sum.Add(n)
		return err
	})
	if err != nil || len(latencies) != 1000 || sum.Load() != 1000*1001/2 {
		t.Errorf("%d calls, sum %d, %v", len(latencies), sum.Load(), err)
	}
	if !slices.IsSorted(latencies) {
		t.Error("the durations are not sorted")
	}
	if err := s.fill(10, func() (int64, error) { return 0, errors.New("it fails") }); err == nil {
		t.Error("a supply that cannot be filled was filled")
	}
}

// actAsOpenBao answers as the documentation of OpenBao says: it has to be initialized and
// unsealed, and secrets need a token and an engine.
func actAsOpenBao(config string) error {
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	address := regexp.MustCompile(`\n\taddress = "([^"]+)"`).FindSubmatch(text)
	if address == nil || !bytes.Contains(text, []byte(`storage "raft"`)) || !bytes.Contains(text, []byte("\ncluster_addr = ")) {
		return errors.New("a bad configuration")
	}

	var state atomic.Int64 // steps that were done
	mux := http.NewServeMux()
	step := func(route string, from int64, body, answer string) {
		mux.HandleFunc(route, func(w http.ResponseWriter, r *http.Request) {
			sent, err := io.ReadAll(r.Body)
			known := from < 2 || r.Header.Get("X-Vault-Token") == "root"
			if err != nil || !known || !strings.Contains(string(sent), body) || !state.CompareAndSwap(from, from+1) && state.Load() < 3 {
				http.Error(w, `{"errors":["it is sealed, or this is not allowed"]}`, http.StatusServiceUnavailable)
				return
			}
			io.WriteString(w, answer)
		})
	}
	step("PUT /v1/sys/init", 0, `"secret_shares":1`, `{"keys":["key"],"keys_base64":["a2V5"],"root_token":"root"}`)
	step("PUT /v1/sys/unseal", 1, `"key":"key"`, `{"sealed":false}`)
	step("POST /v1/sys/mounts/secret", 2, `"version":"2"`, "")
	step("POST /v1/secret/data/{id}", 3, `{"data":{`, `{"data":{"version":1}}`)
	step("GET /v1/secret/data/{id}", 3, "", `{"data":{"data":{},"metadata":{"version":1}}}`)
	return http.ListenAndServe(string(address[1]), mux)
}

// TestOpenBao: a server is started, made ready and compared with, and it ends.
func TestOpenBao(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{table: &table.Table{Tokens: 10, Rounds: 1}, span: 10 * time.Millisecond, openbao: self, part: "openbao"}
	var open closers
	err = b.inFolder(func(ctx context.Context) (err error) {
		c, err := b.startOpenBao(ctx, &open)
		if err != nil {
			return err
		}
		if answer, err := c.do(0, "GET", "/v1/secret/data/0", nil); err != nil || !bytes.Contains(answer, []byte(`"version":1`)) {
			t.Errorf("a secret is %s, %v", answer, err)
		}
		if err := open.shut(); err != nil {
			t.Error(err)
		}
		if _, err := c.do(0, "GET", "/v1/secret/data/0", nil); err == nil {
			t.Error("the server is still there")
		}
		return b.run(ctx, []string{"openbao"}, "")
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, goal := range peerGoals {
		i := slices.IndexFunc(b.table.Rows, func(r *table.Row) bool { return r.Name == name })
		if i < 0 || b.table.Rows[i].Goal != goal || len(b.table.Rows[i].Rounds) != 1 {
			t.Errorf("the row %s is missing or has no figure", name)
		}
	}
}

// TestGate: the gate fails for costs that have risen in two of three runs, and for no
// others.
func TestGate(t *testing.T) {
	want := map[string]float64{"get/cpu": 2, "get/allocations": 10, "import/cpu": 1, "import/allocations": 20}
	for name, test := range map[string]struct {
		runs     []map[string]float64 // what differs from want
		red      string
		measured int
	}{
		"nothing":                     {[]map[string]float64{{}}, "", 1},
		"faster":                      {[]map[string]float64{{"get/cpu": .1, "get/allocations": 1}}, "", 1},
		"within the share":            {[]map[string]float64{{"get/cpu": 2.6, "get/allocations": 10.9}}, "", 1},
		"once":                        {[]map[string]float64{{"get/cpu": 3}, {}, {}}, "", 3},
		"in two of three":             {[]map[string]float64{{"get/cpu": 3}, {}, {"get/cpu": 3}}, "get/cpu", 3},
		"in all":                      {[]map[string]float64{{"get/cpu": 2.7}, {"get/cpu": 2.7}, {"get/cpu": 2.7}}, "get/cpu", 3},
		"allocations":                 {[]map[string]float64{{"get/allocations": 12}, {"get/allocations": 12}, {}}, "get/allocations", 3},
		"one after another is chance": {[]map[string]float64{{"get/cpu": 3}, {"import/cpu": 3}, {"get/allocations": 13}}, "", 3},
		"two":                         {[]map[string]float64{{"get/cpu": 3, "import/cpu": 3}, {"get/cpu": 3, "import/cpu": 3}, {}}, "get/cpu, import/cpu", 3},
	} {
		measured := 0
		err := judge(want, func(names []string) (map[string]float64, error) {
			if (measured == 0) != (names == nil) {
				t.Errorf("%s: run %d measures %v", name, measured, names)
			}
			got := map[string]float64{}
			for n, c := range want {
				got[n] = c
			}
			for n, c := range test.runs[measured] {
				got[n] = c
			}
			measured++
			return got, nil
		})
		if test.red == "" && err != nil || test.red != "" && (err == nil || !strings.HasSuffix(err.Error(), ": "+test.red)) {
			t.Errorf("%s: %v", name, err)
		}
		if measured != test.measured {
			t.Errorf("%s: measured %d times", name, measured)
		}
	}

	err := judge(want, func([]string) (map[string]float64, error) { return map[string]float64{"get/cpu": 2}, nil })
	if err == nil {
		t.Error("calls that are not measured are green")
	}
}

// TestCost: a work's cost is that of one call, and of the work that it leaves.
func TestCost(t *testing.T) {
	var sink atomic.Pointer[[64]byte]
	w := work{name: "allocates", callers: 2, calls: 1000, run: func(int) error {
		for range 5 {
			sink.Store(new([64]byte))
		}
		return nil
	}}
	c, err := w.measure()
	if err != nil {
		t.Fatal(err)
	}
	if c.allocs < 5 || c.allocs > 6 || c.bytes < 320 || c.cpu <= 0 {
		t.Errorf("%+v", c)
	}
	w.settle = func(calls int) error {
		for range calls {
			sink.Store(new([64]byte))
		}
		return nil
	}
	if c, err = w.measure(); err != nil || c.allocs < 6 || c.allocs > 7 {
		t.Errorf("%+v, %v", c, err)
	}
	low := c.lowest(cost{cpu: 1, allocs: 100, bytes: 1})
	if low != (cost{1, c.allocs, 1}) || (cost{}).lowest(c) != c {
		t.Errorf("the lowest is %+v", low)
	}
}

// TestShape: records whose ids ascend are appended, all others have random keys. Times and
// hashes are entries of indexes.
func TestShape(t *testing.T) {
	var calls [][]store.Record
	for i := range 9 {
		calls = append(calls, []store.Record{
			{ID: uuid.UUID{0: byte(i)}, Shown: make([]byte, 100), Secret: make([]byte, 8)},
			{ID: uuid.UUID{0: byte(i * 100 % 256)}, Shown: make([]byte, 8), Due: time.Now(), Lookup: make([][]byte, 2)},
		})
	}
	want := shape{{false, 150}, {true, 50}, {false, 17}, {true, 0}, {true, 0}}
	if got := shapeOfRecords(calls); !slices.Equal(got, want) {
		t.Errorf("the shape is %v, want %v", got, want)
	}

	plain, err := shapeOf(t.Context(), nil)
	if err != nil || len(plain) != 1 || plain[0].random || plain[0].value < 200 {
		t.Errorf("an import puts %v, %v", plain, err)
	}
	again, err := shapeOf(t.Context(), keyed)
	if err != nil || len(again) < 3 || again[0].random || !slices.ContainsFunc(again, func(p put) bool { return p.random }) {
		t.Errorf("an import under a key puts %v, %v", again, err)
	}
}

// TestFloor: the floor has stored each row of each shape once put returns.
func TestFloor(t *testing.T) {
	f, err := newFloor(filepath.Join(t.TempDir(), "floor.db"), shape{{false, 100}, {true, 10}}, 500)
	if err != nil {
		t.Fatal(err)
	}
	if err := parallel(16, func(int) error { return f.put() }); err != nil {
		t.Fatal(err)
	}
	tx, err := f.db.Begin(false)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"rows0": 516, "rows1": 16} {
		if got := tx.Bucket([]byte(name)).Stats().KeyN; got != want {
			t.Errorf("%s has %d rows, want %d", name, got, want)
		}
	}
	if err := errors.Join(tx.Rollback(), f.close()); err != nil {
		t.Error(err)
	}
}

// TestParts runs each part once, with little.
func TestParts(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	b := &bench{table: &table.Table{Tokens: 2000, Rounds: 1, Span: "20ms"}, span: 20 * time.Millisecond, family: 100, kills: 2}
	figures := filepath.Join(t.TempDir(), "benchmarks")
	if err := os.WriteFile(figures+".md", []byte("<!-- tables: make bench -->\n<!-- end of tables -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range b.parts() {
		if p.name != "sweep" && !p.asked { // sweep waits for half a minute
			names = append(names, p.name)
		}
	}
	err := b.inFolder(func(ctx context.Context) error { return b.run(ctx, names, figures) })
	if err != nil {
		t.Fatal(err)
	}

	seen := map[string]bool{}
	for _, r := range b.table.Rows {
		if seen[r.Name] {
			t.Errorf("two rows are named %s", r.Name)
		}
		seen[r.Name] = true
	}
	for _, name := range []string{"import/256", "import-keyed/256", "get/1", "get/2", "http-read/64", "http-import/64", "http-list/8",
		"http-payment/64", "features-sink-webhook/64", "features-all/64", "features-all-loop/1", "openbao-create/64", "postgres-import/64", "postgres-sums/64",
		"partitions-import/64", "replicas-import/3", "reseal/kills"} {
		if !seen[name] {
			t.Errorf("there is no row %s", name)
		}
	}
	if text, err := os.ReadFile(figures + ".md"); err != nil || !bytes.Contains(text, []byte("| http-read/64 |")) {
		t.Errorf("the document lacks the rows, %v", err)
	}
	if err := b.run(t.Context(), []string{"nothing"}, ""); err == nil {
		t.Error("a part that does not exist runs")
	}
}
