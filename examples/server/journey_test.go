package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/examples/internal/sandboxtest"
	"github.com/cardvault/cardvault/internal/doctest"
	"github.com/cardvault/cardvault/receive"
)

// tools returns a directory with only the named programs, to be the PATH of a machine.
func tools(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		at, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("%s is not installed (Debian: apt-get install %[1]s)", name)
		}
		if err := os.Symlink(at, filepath.Join(dir, filepath.Base(name))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The programs that the shell lines call, besides jq. Go builds with a C compiler if there
// is one.
var posix = []string{"sh", "cat", "curl", "cut", "grep", "sed", "seq", "sleep", "go", "gcc", "as", "ld"}

// printed returns the shell lines that a server prints.
func (p *process) printed() string {
	_, lines, _ := strings.Cut(strings.Join(p.output, "\n"), ":\n\n")
	return lines + "\n"
}

// shell runs lines in a directory, as if they were pasted, and returns their output.
func shell(t *testing.T, dir, path, lines string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sandboxtest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", lines)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+path)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("%v: %s\n%s\nof\n%s", err, &stderr, out, lines)
	}
	return string(out)
}

// wantOpen checks that the output ends with so many lines, each of them the credential in
// the payment data before them.
func (p *process) wantOpen(t *testing.T, out string, times int) {
	t.Helper()
	jwe := regexp.MustCompile(`"encrypted_authentication_data": ?"([\w.-]+)"`).FindStringSubmatch(out)
	if jwe == nil {
		t.Fatalf("no payment data in %s", out)
	}
	want, err := receive.OpenPaymentData(jwe[1], receive.NewSharedSecret([]byte(p.Accounts[0].PaymentSecret)))
	if err != nil {
		t.Fatal(err)
	}

	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	for _, line := range lines[len(lines)-times:] {
		var got sandboxtest.Credential
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		same := got.ECI != nil && *got.ECI == want.ECI && got.NetworkToken.Month == want.Expiry.Month && got.NetworkToken.Year == want.Expiry.Year
		want.Number.Expose(func(digits []byte) { same = same && got.NetworkToken.Token == string(digits) })
		want.Cryptogram.Expose(func(text []byte) { same = same && got.Cryptogram == string(text) })
		if !same {
			t.Errorf("another credential is printed than was encrypted: %s", line)
		}
	}
	if strings.Contains(out, `""`) {
		t.Errorf("something is empty: %s", out)
	}
}

// TestPrintedLines: the printed lines work as promised, wherever they are pasted, with and
// without jq.
func TestPrintedLines(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		programs []string
		lines    int // number of lines in the answers
	}{
		"with jq":    {append([]string{"jq"}, posix...), 50},
		"without jq": {posix, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := tools(t, test.programs...)
			p := start(t, filepath.Join(t.TempDir(), "data of 'mine'"), "PATH="+path)
			out := shell(t, t.TempDir(), path, p.printed())
			p.wantOpen(t, out, 1)
			if n := strings.Count(out, "\n"); n < test.lines || test.lines == 4 && n != 4 || !strings.HasSuffix(out, "\n") {
				t.Errorf("%d lines, want %d: %s", n, test.lines, out)
			}
			if again := shell(t, t.TempDir(), path, p.printed()); !strings.Contains(again, "424242******4242") {
				t.Errorf("the second time the lines print %s", again)
			}
		})
	}
}

// TestGettingStarted runs the commands of docs/getting-started.md from the second on. The
// first starts a server, as this test does.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	path := tools(t, posix...)
	document, err := os.ReadFile("../../docs/getting-started.md")
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	doctest.Snippets(string(document), func(_, language, code string) {
		if language == "sh" {
			commands = append(commands, code)
		}
	})
	if len(commands) != 5 || commands[0] != "go run ./examples/server\n" {
		t.Fatalf("commands %q", commands)
	}

	dir := t.TempDir()
	p := start(t, filepath.Join(dir, "cardvault-data"))
	here := strings.NewReplacer("http://127.0.0.1:8080", p.BaseURL)
	out := shell(t, dir, path, here.Replace(strings.Join(commands[1:], "echo\n")))
	answers := strings.FieldsFunc(out, func(r rune) bool { return r == '\n' })
	for i, want := range []string{`{"id":"`, `"success":true`, `"signing_secret":"`} {
		if len(answers) != 3 || !strings.Contains(answers[i], want) {
			t.Fatalf("the answers are %q, want %s", answers, want)
		}
	}

	var token sandboxtest.Token
	if err := json.Unmarshal([]byte(answers[0]), &token); err != nil {
		t.Fatal(err)
	}
	p.Follow(t, token, "active", "inactive suspended_by_issuer")
}

// TestSessionInPython runs the client of docs/card-entry.md that enters a card in a
// session.
func TestSessionInPython(t *testing.T) {
	t.Parallel()
	interpreter := python(t)
	document, err := os.ReadFile("../../docs/card-entry.md")
	if err != nil {
		t.Fatal(err)
	}
	var script string
	doctest.Snippets(string(document), func(_, language, code string) {
		if language == "python" {
			script += code
		}
	})

	p := start(t, t.TempDir())
	cmd := exec.CommandContext(t.Context(), interpreter, "-c", strings.ReplaceAll(script, "http://127.0.0.1:8080", p.BaseURL))
	cmd.Env = append(os.Environ(), "KEY="+p.Accounts[0].APIKey)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	token := p.Get(t, strings.TrimSpace(string(out)))
	p.Follow(t, token, "pending", "active")
}

// nodePackages holds the npm packages of the tests.
const nodePackages = "../../test/node_modules"

// python returns a Python that has jwcrypto: Debian installs it for its own Python.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		if exec.Command(name, "-c", "import jwcrypto").Run() == nil {
			return name
		}
	}
	t.Skip("jwcrypto for Python is not installed (Debian: apt-get install python3-jwcrypto)")
	return ""
}

// TestJourneys runs docs/journeys.md from its second command on. The first starts a server,
// as this test does.
func TestJourneys(t *testing.T) {
	t.Parallel()
	path := tools(t, append([]string{"jq", "node", python(t)}, posix...)...)
	packages, err := filepath.Abs(nodePackages)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(packages, "jose")); err != nil {
		t.Skip("jose is not installed: make deps")
	}

	document, err := os.ReadFile("../../docs/journeys.md")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, data := t.TempDir(), t.TempDir()
	for link, to := range map[string]string{"node_modules": packages, "cardvault-data": data} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}

	var commands []string
	doctest.Snippets(string(document), func(heading, language, code string) {
		file := map[string]string{"js": "open.mjs", "python": "open.py"}[language]
		switch {
		case file != "":
			if n := strings.Count(code, "\n"); n > 8 {
				t.Errorf("%s has %d lines", file, n)
			}
			if err := os.WriteFile(filepath.Join(dir, file), []byte(code), 0o600); err != nil {
				t.Fatal(err)
			}
		case language == "sh":
			commands = append(commands, code)
		case language != "json": // an answer
			t.Errorf("the test cannot run the snippet in %q below %q", language, heading)
		}
	})
	if len(commands) != 4 || commands[0] != "go run ./examples/server\n" {
		t.Fatalf("commands %q", commands)
	}

	p := start(t, data, "PATH="+path)
	here := strings.NewReplacer("http://127.0.0.1:8080", p.BaseURL, "cardvault-data/sandbox.json", filepath.Join(data, "sandbox.json"),
		"go run ./", fmt.Sprintf("go run -C %s ./", root))
	if got := here.Replace(commands[1]); got != p.printed() {
		t.Errorf("docs/journeys.md has\n%s\nand the server prints\n%s", got, p.printed())
	}
	p.wantOpen(t, shell(t, dir, path, strings.NewReplacer("http://127.0.0.1:8080", p.BaseURL,
		"go run ./", fmt.Sprintf("go run -C %s ./", root)).Replace(strings.Join(commands[1:], ""))), 3)
}
