package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"filippo.io/age"
	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/doctest"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"
	bolt "go.etcd.io/bbolt"
)

var postgres = realtest.SharedPostgreSQL(nil)

func TestMain(m *testing.M) {
	testscript.Main(postgres.Main(m), map[string]func(){
		"vaultctl": main,
		"serve":    func() { exit(serve(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]...)) },
		"store":    func() { exit(storeCard(os.Args[1], os.Args[2])) },
		"fake":     func() { exit(fake(os.Args[1], os.Args[2])) },
	})
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve serves the REST API of a sandbox until it is terminated, and writes its address into
// a file. With the word socket, vaultctl can call its vault. The folder of a ledger may follow.
func serve(place, key, addr string, more ...string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c := at(place)
	if len(more) > 1 {
		c.ledger = more[1]
	}
	keys, err := c.keyring(ctx, key, "")
	if err != nil {
		return err
	}
	return c.on(ctx, keys, func(ctx context.Context, v *cardvault.Vault) error {
		h, err := httpapi.NewHandler(v, nil)
		if err != nil {
			return err
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		server := &http.Server{Handler: h}
		go func() { _ = server.Serve(httpapi.Erasing(listener)) }()
		defer server.Close()
		if len(more) > 0 {
			operators, err := operator.Listen(c.vault)
			if err != nil {
				return err
			}
			go func() { _ = operator.Serve(ctx, operators, v, slog.New(slog.DiscardHandler)) }()
		}
		if err := newFile(addr, func(w io.Writer) error { _, err := fmt.Fprint(w, listener.Addr()); return err }); err != nil {
			return err
		}
		return v.Run(ctx)
	})
}

// fake offers a socket in a folder, which it makes, until it is terminated: gone ends amid each answer,
// and other answers as a server of another version.
func fake(dir, how string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	l, err := operator.Listen(dir)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if how == "other" {
			http.Error(w, "the server does not have this call: is it of another version?", http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, "d\x00\x00\x00\x04half") // a frame of data
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// at returns the flags that name a place.
func at(place string) *cli {
	c := &cli{in: os.Stdin, out: os.Stdout, errs: os.Stderr}
	if url, ok := strings.CutPrefix(place, "--store="); ok {
		c.store = url
	} else {
		c.vault = strings.TrimPrefix(place, "--vault=")
	}
	return c
}

// storeCard stores a test card with the API key in a file.
func storeCard(addr, keyFile string) error {
	where, err := os.ReadFile(addr)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return err
	}
	body := `{"account_number":"4242424242424242","expiry_month":12,"expiry_year":2099}`
	req, err := http.NewRequest("POST", "http://"+string(where)+"/cde-import", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("x-api-key", strings.TrimSpace(string(key)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

var databases atomic.Int32

// TestScripts: every command, and each of its errors, on a folder and on PostgreSQL.
func TestScripts(t *testing.T) {
	for _, on := range []string{"bolt", "postgres"} {
		t.Run(on, func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Dir:                 "testdata/script",
				RequireExplicitExec: true,
				RequireUniqueNames:  true,
				Setup: func(env *testscript.Env) error {
					at := "--vault=" + filepath.Join(env.WorkDir, "data", "vault")
					if on == "postgres" {
						at = database(t)
					}
					env.Setenv("AT", at)
					return errors.Join(os.Mkdir(filepath.Join(env.WorkDir, "data"), 0o700), os.Mkdir(filepath.Join(env.WorkDir, "keys"), 0o700))
				},
				Condition: func(name string) (bool, error) { return name == on, nil },
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"exits": exits, "await": awaitFile, "mode": mode, "edit": edit, "verify": verify, "checkpoints": checkpoints, "damage": damage, "unlist": unlist, "with": with, "keyid": keyID,
					"flip": flip, "bare": bare, "printed": printed, "questions": questions, "identity": identity, "cutlast": cutLast,
					"place": func(ts *testscript.TestScript, _ bool, args []string) { ts.Setenv(args[1], place(t, ts, args[0])) },
				},
			})
		})
	}
}

// database makes a database, and returns the flag that names it.
func database(t *testing.T) string {
	server, name := postgres.Get(t), "v"+strconv.Itoa(int(databases.Add(1)))
	server.SQL(t, "postgres", "CREATE DATABASE "+name)
	server.SQL(t, name, "REVOKE CONNECT ON DATABASE "+name+" FROM PUBLIC")
	return "--store=" + server.URL(name)
}

// printed writes the lines of a page, under some headings, into a file: printed FILE PAGE HEADING…
func printed(ts *testscript.TestScript, _ bool, args []string) {
	page, err := os.ReadFile(filepath.Join(docs, args[1]))
	ts.Check(err)
	var lines strings.Builder
	for _, want := range args[2:] {
		before := lines.Len()
		doctest.Snippets(string(page), func(heading, language, code string) {
			if heading == want && language == "sh" {
				lines.WriteString(code)
			}
		})
		if lines.Len() == before {
			ts.Fatalf("%s has no lines under %s", args[1], want)
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(lines.String()), 0o600))
}

// questions writes each command of the table of a page with which an auditor's questions are
// answered into a file, question1 and so on. What the page has in capitals are variables:
// questions PAGE NUMBER
func questions(ts *testscript.TestScript, _ bool, args []string) {
	page, err := os.ReadFile(filepath.Join(docs, args[0]))
	ts.Check(err)
	commands := regexp.MustCompile("`((?:vaultctl|grep|head) .+?)`")
	capitals := regexp.MustCompile(`\b(DIR|FILE|FORMER|LOG|KEYS|ID|TOKEN)\b`)
	n := 0
	for row := range strings.Lines(string(page)) {
		cells := strings.Split(strings.ReplaceAll(row, `\|`, "\x00"), "|")
		if len(cells) != 5 || !strings.Contains(cells[2], "?") {
			continue
		}
		for _, m := range commands.FindAllStringSubmatch(cells[3], -1) {
			n++
			line := capitals.ReplaceAllString(strings.ReplaceAll(m[1], "\x00", "|"), `"$$$1"`)
			ts.Check(os.WriteFile(ts.MkAbs(fmt.Sprint("question", n)), []byte(line+"\n"), 0o600))
		}
	}
	if strconv.Itoa(n) != args[1] {
		ts.Fatalf("%s has %d commands, and not %s", args[0], n, args[1])
	}
}

// docs is the folder of the pages.
var docs, _ = filepath.Abs("../../docs")

// bare sets a variable to a place without its flag: bare NAME $PLACE
func bare(ts *testscript.TestScript, _ bool, args []string) {
	_, place, _ := strings.Cut(args[1], "=")
	ts.Setenv(args[0], place)
}

// place returns the flag of a new place for a vault: place bolt NAME
func place(t *testing.T, ts *testscript.TestScript, on string) string {
	if on == "postgres" {
		return database(t)
	}
	dir, err := os.MkdirTemp(ts.MkAbs("data"), "")
	ts.Check(err)
	return "--vault=" + filepath.Join(dir, "vault")
}

// flip flips a bit near the end of a copy of a file: flip backup edited
func flip(ts *testscript.TestScript, _ bool, args []string) {
	b := []byte(ts.ReadFile(args[0]))
	b[len(b)-100] ^= 1
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), b, 0o600))
}

// cutLast cuts the last line off each file of a folder: cutlast log
func cutLast(ts *testscript.TestScript, _ bool, args []string) {
	files, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "*"))
	ts.Check(err)
	for _, f := range files {
		text := ts.ReadFile(f)
		end := strings.LastIndex(strings.TrimSuffix(text, "\n"), "\n") + 1
		ts.Check(os.WriteFile(f, []byte(text[:end]), 0o600))
	}
}

// identity makes files with an age identity and its recipient: identity keys/age recipients
func identity(ts *testscript.TestScript, _ bool, args []string) {
	id, err := age.GenerateX25519Identity()
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte("# an identity\n"+id.String()+"\n"), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(id.Recipient().String()+"\n"), 0o600))
}

// exits runs a program, which has to end with a status: exits 3 vaultctl report
func exits(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		got = ended.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit status %d, want %s", got, args[0])
	}
}

// awaitFile waits for a file: await addr
func awaitFile(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	until := time.Now().Add(time.Minute)
	for {
		switch _, err := os.Stat(path); {
		case err == nil:
			return
		case !errors.Is(err, fs.ErrNotExist):
			ts.Check(err)
		case time.Now().After(until):
			ts.Fatalf("%s does not come", args[0])
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// mode compares the mode of a file: mode 600 keys/vault.key
func mode(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[1]))
	ts.Check(err)
	if got := strconv.FormatUint(uint64(info.Mode().Perm()), 8); got != args[0] {
		ts.Fatalf("mode of %s is %s, want %s", args[1], got, args[0])
	}
}

// edit replaces the first of some text in a copy of a file: edit log edited old new
func edit(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0])
	edited := strings.Replace(text, args[2], args[3], 1)
	if edited == text {
		ts.Fatalf("%s lacks %q", args[0], args[2])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(edited), 0o600))
}

// verify verifies an export with the public keys in a file: verify log keys
func verify(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(ts.Exec("vaultctl", "audit", "verify", args[0], "--public-key", ts.ReadFile(args[1])))
}

// checkpoints writes the checkpoints of an export into a file: checkpoints log kept
func checkpoints(ts *testscript.TestScript, _ bool, args []string) {
	var kept strings.Builder
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		if one, ok := strings.CutPrefix(line, `{"checkpoint":`); ok {
			kept.WriteString(strings.TrimSuffix(one, "}\n") + "\n")
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(kept.String()), 0o600))
}

// with runs a program with the content of a file as its last argument: with shop vaultctl … --account
func with(ts *testscript.TestScript, fails bool, args []string) {
	err := ts.Exec(args[1], append(args[2:], strings.TrimSpace(ts.ReadFile(args[0])))...)
	if (err != nil) != fails {
		ts.Fatalf("ends with %v", err)
	}
}

// keyID writes the id that standard error names into a file: keyid id
func keyID(ts *testscript.TestScript, _ bool, args []string) {
	_, id, _ := strings.Cut(ts.ReadFile("stderr"), "API key ")
	id, _, _ = strings.Cut(id, ".")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(id), 0o600))
}

const (
	kindMerchant              = ledger.KindAccount + 1
	kindAuditChain            = 36
	kindToken      store.Kind = 5
)

// damage flips a bit in the first records of a kind: damage $AT merchant 2
func damage(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	ts.Check(flipRows(args[0], map[string]store.Kind{"merchant": kindMerchant, "token": kindToken, "log": kindAuditChain}[args[1]], n))
}

// unlist takes the entries of all hashes out of their index, behind the back of the store: unlist $AT
func unlist(ts *testscript.TestScript, _ bool, args []string) {
	if url, ok := strings.CutPrefix(args[0], "--store="); ok {
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, url)
		ts.Check(err)
		_, err = conn.Exec(ctx, `DELETE FROM cardvault.lookups`)
		ts.Check(errors.Join(err, conn.Close(ctx)))
		return
	}

	db, err := bolt.Open(filepath.Join(strings.TrimPrefix(args[0], "--vault="), boltFile), 0o600, nil)
	ts.Check(err)
	err = db.Update(func(tx *bolt.Tx) error {
		name := []byte("lookup")
		if err := tx.DeleteBucket(name); err != nil {
			return err
		}
		_, err := tx.CreateBucket(name)
		return err
	})
	ts.Check(errors.Join(err, db.Close()))
}

// flipRows flips a bit in the first records of a kind.
func flipRows(place string, kind store.Kind, n int) error {
	return changeRows(place, kind, n, func(r *store.Record) { r.Shown[len(r.Shown)-1] ^= 1 })
}

// changeRows changes the first records of a kind.
func changeRows(place string, kind store.Kind, n int, change func(*store.Record)) (err error) {
	s, err := at(place).openStore(context.Background(), false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.Update(context.Background(), func(tx store.Tx) error {
		rows, err := tx.Scan(kind, uuid.Nil, n)
		for _, r := range rows {
			change(r)
			r.Version++
			tx.Put(r)
		}
		return err
	})
}

// TestResealUnreadable: reseal does not say that all is done beside a record whose term cannot be read.
func TestResealUnreadable(t *testing.T) {
	dir := t.TempDir()
	flags := []string{"--vault", filepath.Join(dir, "vault"), "--key", filepath.Join(dir, "keys", "vault.key")}
	call := func(command string) (status int, out, errs string) {
		var a, b strings.Builder
		status = run(append(flags, command), os.Stdin, &a, &b)
		return status, a.String(), b.String()
	}
	if status, _, errs := call("init"); status != 0 {
		t.Fatal(errs)
	}
	if status, out, _ := call("reseal"); status != 0 || !strings.Contains(out, "All records are sealed") {
		t.Errorf("status %d, %s", status, out)
	}
	err := changeRows("--vault="+flags[1], kindMerchant, 1, func(r *store.Record) { r.Shown[0] ^= 0xff })
	if err != nil {
		t.Fatal(err)
	}
	status, out, errs := call("reseal")
	if status != found || strings.Contains(out, "All records") || !strings.Contains(errs, "damaged: 1 records, whose term cannot be read") {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
}

// TestOverdue: the key of a vault that was made long ago is reported as overdue.
func TestOverdue(t *testing.T) {
	dir := t.TempDir()
	folder, key := filepath.Join(dir, "vault"), filepath.Join(dir, "keys", "vault.key")
	keys, err := cardvault.KeyFile(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // in the year 2000
		v, err := cardvault.Open(t.Context(), folder, keys, nil)
		if err == nil {
			err = v.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	})

	report := func(more ...string) (status int, out, errs string) {
		var a, b strings.Builder
		status = run(append([]string{"--vault", folder, "--key", key, "report"}, more...), os.Stdin, &a, &b)
		return status, a.String(), b.String()
	}
	if status, _, errs := report(); status != found || errs != "vaultctl: overdue: key of term 1, audit 1, fingerprint 1, lookup 1: rotate, then reseal\n"+
		"overdue: key-encryption key: change-key, then destroy the former key once no backup needs it\n" {
		t.Errorf("status %d, %s", status, errs)
	}
	if status, out, _ := report("--json"); status != found || !strings.Contains(out, `"overdue":true`) || strings.Contains(out, "error") {
		t.Errorf("status %d, %s", status, out)
	}
	if status, _, errs := report("--crypto-period", "1h"); status != failed || !strings.Contains(errs, "CryptoPeriod must be between") {
		t.Errorf("status %d, %s", status, errs)
	}
}

// TestProgress: a terminal shows a bar on one line, and anything else a line for each tenth.
func TestProgress(t *testing.T) {
	for _, bar := range []bool{false, true} {
		var b strings.Builder
		p := &progress{to: &b, bar: bar, what: "records", total: 40}
		for left := int64(40); left >= 0; left-- {
			p.left(left)
		}
		p.end()
		p.end()
		lines, first, last := 11, "  0% of 40 records\n", "100% of 40 records\n"
		if bar {
			lines, first, last = 1, "\r["+strings.Repeat(".", barWidth)+"] 0 of 40 records", "\r["+strings.Repeat("#", barWidth)+"] 40 of 40 records\n"
		}
		if text := b.String(); strings.Count(text, "\n") != lines || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
			t.Errorf("bar %t: %q", bar, text)
		}
	}
}

// TestProgressWithoutTotal: a terminal shows what was done, and anything else a line every ten
// seconds.
func TestProgressWithoutTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, bar := range []bool{false, true} {
			var b strings.Builder
			c := &cli{errs: &b}
			p := c.progress("", 0)
			p.bar = bar
			for n := range int64(21) {
				p.moved(cardvault.BackupProgress{Records: n, Bytes: n << 20})
				time.Sleep(time.Second)
			}
			p.end()
			want := "10 records, 10.0 MiB\n20 records, 20.0 MiB\n"
			if text := b.String(); !bar && text != want || bar && (strings.Count(text, "\r") != 21 || !strings.HasSuffix(text, "\r20 records, 20.0 MiB\n")) {
				t.Errorf("bar %t: %q", bar, text)
			}
		}
	})
}

// TestProgressOfVerify: the line has records and findings, and says when only the indexes are left.
func TestProgressOfVerify(t *testing.T) {
	var b strings.Builder
	p := &progress{to: &b, bar: true}
	p.verified(cardvault.VerifyProgress{Records: 128, Found: 2})
	p.verified(cardvault.VerifyProgress{Records: 128, Found: 2, Indexes: true})
	p.end()
	want := "\r128 records, 2 findings\r128 records, 2 findings; all records were read\n"
	if text := b.String(); text != want {
		t.Errorf("%q, want %q", text, want)
	}
}

// TestPatient: a signal ends the wait for a pipe that nobody serves.
func TestPatient(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := &patient{ctx: ctx, Reader: r, Writer: w}
	if _, err := p.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Read = %v", err)
	}
	if _, err := p.Write(make([]byte, 1<<20)); !errors.Is(err, context.Canceled) {
		t.Errorf("Write = %v", err)
	}
}

// TestVerifyStopped: a verification that is stopped prints what it has found and its position,
// where another goes on.
func TestVerifyStopped(t *testing.T) {
	dir := t.TempDir()
	folder, key := filepath.Join(dir, "vault"), filepath.Join(dir, "keys", "vault.key")
	keys, err := cardvault.KeyFile(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // where a rate of 1 costs no time
		v, err := cardvault.Open(t.Context(), folder, keys, nil)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 20 {
			if _, err := v.CreateAccount(t.Context(), strconv.Itoa(n), nil); err != nil {
				t.Error(err)
			}
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}

		// verify is stopped as soon as it writes to standard error, which is its first line of
		// progress, after 10 seconds.
		verify := func(more ...string) (status int, out, errs string) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var a strings.Builder
			b := &stopper{stop: cancel}
			status = runUntil(ctx, append([]string{"--vault", folder, "--key", key, "verify"}, more...), os.Stdin, &a, b)
			return status, a.String(), b.String()
		}
		position := regexp.MustCompile(`(?m)^To verify the rest: --position ([\w-]+)$`)

		status, out, errs := verify("--rate", "1")
		at := position.FindStringSubmatch(out)
		if status != failed || at == nil || !strings.HasPrefix(out, "Verify has ended early: ") || strings.Contains(out, "altered") || !strings.Contains(errs, "\nvaultctl: stopped by a signal: ") {
			t.Fatalf("status %d, %s%s", status, out, errs)
		}
		if status, out, errs := verify("--position", at[1]); status != 0 || !strings.HasPrefix(out, "The rest of the vault is whole: ") || errs != "" {
			t.Errorf("status %d, %s%s", status, out, errs)
		}

		if err := flipRows(folder, kindMerchant, 2); err != nil {
			t.Fatal(err)
		}
		status, out, errs = verify("--rate", "1")
		at = position.FindStringSubmatch(out)
		if status != found || at == nil || !strings.Contains(out, "\naltered: 2\n") || !strings.HasSuffix(errs, "\ndamaged: 2 altered\n") {
			t.Fatalf("status %d, %s%s", status, out, errs)
		}
		if status, out, errs := verify("--position", at[1], "--json"); status != 0 || !strings.Contains(out, `"position":"","problems":[]`) || errs != "" {
			t.Errorf("status %d, %s%s", status, out, errs)
		}
	})
}

// A stopper keeps text, and calls stop when it has some.
type stopper struct {
	strings.Builder
	stop func()
}

func (s *stopper) Write(b []byte) (int, error) {
	s.stop()
	return s.Builder.Write(b)
}

// TestVerifyText: a report shows damage without a single record, and of indexes.
func TestVerifyText(t *testing.T) {
	id, account := uuid.MustParse("f3a91c5e-7d2b-4c86-9a40-1b6e8d2f7c35"), uuid.MustParse("11111111-1111-4111-8111-111111111111")
	got := verifyText(&cardvault.VerifyReport{Records: 7, Problems: []cardvault.Problem{
		{Kind: cardvault.ProblemUnreadable, Count: 1, Findings: []cardvault.Finding{{Kind: "token"}}, Hurt: "calls", Safe: "the rest", Remedy: "a backup"},
		{Kind: cardvault.ProblemIndexStray, Count: 3, Findings: []cardvault.Finding{{Kind: "token", ID: id, AccountID: account, Index: store.IndexList}}, Hurt: "totals", Safe: "records", Remedy: "look"},
	}}, true)
	want := `7 records were read.
The indexes were not compared with the records: the store cannot do that.

unreadable: 1
fails: calls
works: the rest
remedy: a backup
RECORD  ID  ACCOUNT  INDEX
token   -   -        -

index_stray: 3
fails: totals
works: records
remedy: look
RECORD  ID                                    ACCOUNT                               INDEX
token   f3a91c5e-7d2b-4c86-9a40-1b6e8d2f7c35  11111111-1111-4111-8111-111111111111  list
and 2 more: see --most
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestVerifySumsMissed: a vault whose sums were not compared is not called whole.
func TestVerifySumsMissed(t *testing.T) {
	r := &cardvault.VerifyReport{Records: 7, Indexes: true, SumsMissed: true}
	for _, resumed := range []bool{false, true} {
		if got := verifyText(r, resumed); strings.Contains(got, "whole") || !strings.Contains(got, "not compared with their sums") {
			t.Errorf("got %s", got)
		}
	}
	_, finds := errors.AsType[finding](damageOf(r))
	if damageOf(r) == nil || finds {
		t.Errorf("damage: %v", damageOf(r))
	}
}
