package faults_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestKilled kills processes that work on a vault, several operations at a time, one process after
// the other on the same vault. Every time the vault is whole, has every acknowledged object, and
// has no deleted one. There are 50 kills, and 1,000 in make faults.
func TestKilled(t *testing.T) {
	if obeyed(t) {
		return
	}
	var dir string
	var k *known
	acked, tried, imports := map[string]int{}, map[string]bool{}, 0
	random := rand.New(rand.NewPCG(9, 10))
	kills := points(50, 1000)
	for kill := range kills {
		if kill%50 == 0 {
			dir, k = scratch(t), newKnown()
		}
		o := &orders{Dir: dir, Sim: filepath.Join(dir, "sim"), History: filepath.Join(dir, "history"), Random: 10_000, Workers: 4, Seed: uint64(kill)}
		k.remember(t, o.History)
		lines := killed(t, o, 1+random.IntN(60), time.Duration(random.IntN(3000))*time.Microsecond)

		for _, l := range lines {
			k.take(l)
			tried[l.Op] = true
			if l.State == done {
				acked[l.Op]++
			}
		}
		k.died()
		imports += len(k.imports)
		if wrong := check(t, dir, k, kill%10 == 0); len(wrong) > 0 {
			t.Fatalf("kill %d:\n%s", kill, strings.Join(wrong, "\n"))
		}
	}
	t.Logf("%d kills, and nothing was lost, came back or did not agree; %d imports had no answer and were repeated; acknowledged: %v", kills, imports, acked)
	for op := range ops {
		if alone := []string{"compact", "hour", "increment", "restore", "move"}; kills >= 1000 && !tried[op] && !slices.Contains(alone, op) {
			t.Errorf("%s was never under way", op)
		}
	}
}

// remember writes a history with the known facts.
func (k *known) remember(t *testing.T, path string) {
	t.Helper()
	text, err := json.Marshal(line{At: k.last, Op: "history", State: done, Facts: k.facts, Anchor: k.anchor})
	if err == nil && k.acked > 0 {
		text = append(text, '\n')
	} else {
		text = nil
	}
	if err := errors.Join(err, os.WriteFile(path, text, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// killed starts a process with orders, kills it a while after some lines of its log, and returns
// the lines.
func killed(t *testing.T, o *orders, after int, while time.Duration) (lines []line) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	o.Log = "/dev/fd/3"
	process, out, err := work(o, write)
	if err := errors.Join(err, write.Close()); err != nil {
		t.Fatal(err)
	}

	for log := bufio.NewReader(read); ; {
		text, err := log.ReadString('\n')
		if err != nil { // also a line that was cut off
			break
		}
		if lines = append(lines, parseLine(text)); len(lines) == after {
			time.AfterFunc(while, func() { _ = process.Process.Kill() })
		}
	}
	if err := process.Wait(); err == nil || strings.Contains(out.String(), "FAIL") {
		t.Fatalf("%d lines, not killed: %v\n%s", len(lines), err, out)
	}
	return lines
}
