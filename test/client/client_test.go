// Package client_test checks the contract of the REST API with tools of others: a linter,
// and a client in TypeScript with generated types.
package client_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const contract = "../../httpapi/openapi.yaml"

// tool returns the command of a program installed by npm.
func tool(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("node_modules", ".bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not installed (npm ci --prefix test/client --ignore-scripts)", name)
	}
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("Node.js is not installed (Debian: apt-get install nodejs)")
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true")
	return cmd
}

// TestLint lints the contract with the strict rules of redocly.yaml. The exceptions are in
// .redocly.lint-ignore.yaml.
func TestLint(t *testing.T) {
	if out, err := tool(t, "redocly", "lint", "--format=stylish", contract).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestJourney generates types from the contract, compiles journey.ts with them, and runs it
// against the sandbox of examples/server.
func TestJourney(t *testing.T) {
	dir := t.TempDir()
	run := func(cmd *exec.Cmd) {
		t.Helper()
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", filepath.Base(cmd.Path), err, out)
		}
	}

	document, err := filepath.Abs(contract)
	if err != nil {
		t.Fatal(err)
	}
	generate := tool(t, "openapi-typescript", document, "--output", "contract.ts")
	for _, name := range []string{"journey.ts", "tsconfig.json", "package.json"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	modules, err := filepath.Abs("node_modules")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	run(generate)
	run(tool(t, "tsc", "--project", "."))

	in, err := json.Marshal(serve(t))
	if err != nil {
		t.Fatal(err)
	}
	journey := exec.CommandContext(t.Context(), "node", filepath.Join("out", "journey.js"))
	journey.Dir, journey.Stdin = dir, bytes.NewReader(in)
	if out, err := journey.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "done" {
		t.Fatalf("journey.ts: %v\n%s", err, out)
	}
}

// A shop holds the arguments of journey.ts.
type shop struct {
	Base   string `json:"base"`
	Key    string `json:"key"`
	Secret string `json:"secret"`
}

// serve starts the sandbox, and returns a shop's knowledge of it.
func serve(t *testing.T) shop {
	t.Helper()
	program := filepath.Join(t.TempDir(), "server")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./examples/server")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	data := t.TempDir()
	server := exec.Command(program, "-addr", "127.0.0.1:0", "-data", data)
	var log bytes.Buffer
	server.Stderr = &log
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	said := make(chan bool, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s := bufio.NewScanner(stdout)
		said <- s.Scan()
		for s.Scan() {
		}
	}()
	t.Cleanup(func() {
		_ = server.Process.Kill() // it may have ended
		<-done
		_ = server.Wait() // killed
		if t.Failed() {
			t.Logf("the server says:\n%s", &log)
		}
	})
	select {
	case ok := <-said: // once it answers
		if !ok {
			t.Fatal("the server has ended")
		}
	case <-time.After(5 * time.Minute):
		t.Fatal("the server does not start")
	}

	var box struct {
		Base     string `json:"base_url"`
		Accounts []struct {
			Key    string `json:"api_key"`
			Secret string `json:"payment_secret"`
		} `json:"accounts"`
	}
	b, err := os.ReadFile(filepath.Join(data, "sandbox.json"))
	if err == nil {
		err = json.Unmarshal(b, &box)
	}
	if err != nil {
		t.Fatal(err)
	}
	return shop{box.Base, box.Accounts[0].Key, box.Accounts[0].Secret}
}
