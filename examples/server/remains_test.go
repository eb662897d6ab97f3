//go:build linux

package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/iin"
)

// A canary is a number that occurs only where its path has left it.
type canary struct{ digits, path string }

// A brood is a set of canaries. All canaries of a kind share a prefix, to search for any of
// them.
type brood struct {
	all   []canary
	pairs int             // number of pairs of a card and a security code
	paths map[string]bool // the paths that were used

	// The prefixes. Lost canaries go where the server cannot recognize or erase them. Bombs
	// make the server panic.
	code, card, bomb   string
	lostCode, lostCard string
}

func newBrood() brood {
	return brood{
		paths: map[string]bool{},
		code:  "2" + digits(8), lostCode: "3" + digits(8), // no number begins with 0
		card: "4111111" + digits(2), bomb: "4111112" + digits(2), lostCard: "4111113" + digits(2),
	}
}

// digits returns n random digits.
func digits(n int) string {
	limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
	x, err := rand.Int(rand.Reader, limit)
	if err != nil {
		panic(err) // crypto/rand does not fail
	}
	return fmt.Sprintf("%0*d", n, x)
}

// fill puts a new card and a new security code into text, in place of PAN or BOMB, and of
// CODE, ESCAPED or LOST. It notes their path.
func (b *brood) fill(text, path string) string {
	b.paths[path] = true
	pan, code := b.card, b.code
	switch {
	case strings.Contains(text, "BOMB"):
		pan = b.bomb
	case strings.Contains(text, "LOST"):
		pan, code = b.lostCard, b.lostCode
	}
	// The pair's number occurs in every part, so that no two canaries share one.
	pan = fmt.Sprintf("%s%03d%s", pan, b.pairs, digits(3))
	pan += string(iin.CheckDigit([]byte(pan)))
	code = fmt.Sprintf("%s%03d%s", code, b.pairs, digits(12))
	b.all = append(b.all, canary{pan, path}, canary{code, path})
	b.pairs++
	var escaped strings.Builder
	for _, c := range code {
		fmt.Fprintf(&escaped, `\u%04x`, c)
	}
	return strings.NewReplacer("PAN", pan, "BOMB", pan, "CODE", code, "ESCAPED", escaped.String(), "LOST", code).Replace(text)
}

// part is the number of consecutive digits that identify a remnant of a canary. No two
// canaries share as many.
const part = 12

// A search looks for canaries, whole and in part, as digits and as digits escaped like in
// JSON.
type search struct {
	canaries []canary
	parts    map[string]int // to the index of the canary
}

func newSearch(canaries []canary) *search {
	s := &search{canaries, map[string]int{}}
	for i, c := range canaries {
		for j := range len(c.digits) - part + 1 {
			s.parts[c.digits[j:j+part]] = i
		}
	}
	return s
}

// Remains are the findings of a search in one place.
type remains struct {
	search   *search
	of       map[int]string // places by index of the canary
	place    string         // where the search is
	searched int64          // bytes
}

func (s *search) begin() *remains {
	return &remains{search: s, of: map[int]string{}}
}

const escape = len(`\u0030`)

// see searches bytes.
func (r *remains) see(b []byte) {
	for i := part - 1; i < len(b); i += part { // every run of part digits covers one of these positions
		if !isDigit(b[i]) {
			continue
		}
		from := i
		for from > 0 && isDigit(b[from-1]) {
			from--
		}
		for i < len(b) && isDigit(b[i]) {
			i++
		}
		r.run(b[from:i])
	}
	for i := 0; ; {
		j := bytes.Index(b[i:], []byte(`\u003`))
		if j < 0 {
			return
		}
		var digits []byte
		for i += j; i+escape <= len(b) && bytes.HasPrefix(b[i:], []byte(`\u003`)); i += escape {
			digits = append(digits, b[i+escape-1])
		}
		r.run(digits)
		i = min(i+1, len(b))
	}
}

// run searches digits.
func (r *remains) run(digits []byte) {
	for i := range len(digits) - part + 1 {
		if c, ok := r.search.parts[string(digits[i:i+part])]; ok {
			r.of[c] = r.place
		}
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// read searches all data of a reader, in pieces that overlap by more than a canary's
// length.
func (r *remains) read(from io.Reader) error {
	const overlap = 64 * escape
	buf, nothing := make([]byte, 64<<10), make([]byte, 64<<10)
	for kept := 0; ; {
		n, err := io.ReadFull(from, buf[kept:])
		r.searched += int64(n)
		if n += kept; !bytes.Equal(buf[:n], nothing[:n]) { // like most of a dump
			r.see(buf[:n])
		}
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return err
		}
		kept = copy(buf, buf[len(buf)-overlap:])
	}
}

// found returns the paths of the found canaries with a prefix, and the ranges of memory.
func (r *remains) found(prefix string) (paths []string) {
	for i, place := range r.of {
		if c := r.search.canaries[i]; strings.HasPrefix(c.digits, prefix) {
			paths = append(paths, strings.TrimSpace(c.path+" "+place))
		}
	}
	slices.Sort(paths)
	return paths
}

// inMemory searches the memory of a process.
func (s *search) inMemory(t *testing.T, pid int) *remains {
	t.Helper()
	r := s.begin()
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to int64
		var access string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &access); err != nil {
			continue // [vsyscall] is beyond int64 and holds nothing
		}
		if access[0] != 'r' || strings.Contains(lines.Text(), "[vvar") || to-from > 1<<36 {
			continue // the last are the tables of the race detector
		}
		fields := strings.Fields(lines.Text())
		if constant(fields) {
			continue // card numbers of documentation, which may have part of a canary in common
		}
		if info, err := os.Stat(fields[len(fields)-1]); err == nil && len(fields) > 5 { // a mapping may be longer than its file
			var offset int64
			if _, err := fmt.Sscanf(fields[2], "%x", &offset); err == nil {
				to = min(to, from+info.Size()-offset)
			}
		}
		r.place = fmt.Sprint(fields)
		if err := r.read(&pages{memory, from, to}); err != nil {
			t.Fatalf("reading the memory: %v", err)
		}
	}
	return r
}

// constant reports whether a range of memory, in the form of proc_pid_maps(5), is code or
// constants of a program: a private copy of a file, to which nothing may write.
func constant(fields []string) bool {
	return strings.HasSuffix(fields[1], "p") && !strings.Contains(fields[1], "w") && len(fields) > 5 && strings.HasPrefix(fields[5], "/")
}

// Pages read a range of memory. Absent pages are left out, for example pages of a mapped
// file beyond its end.
type pages struct {
	memory   io.ReaderAt
	from, to int64
}

func (p *pages) Read(b []byte) (int, error) {
	for p.from < p.to {
		n, err := p.memory.ReadAt(b[:min(int64(len(b)), p.to-p.from)], p.from)
		p.from += int64(n)
		if n > 0 {
			return n, nil
		}
		if err == nil {
			return 0, io.ErrNoProgress
		}
		page := int64(os.Getpagesize())
		p.from = (p.from/page + 1) * page
	}
	return 0, io.EOF
}

// inCore searches a dump of a running process.
func (s *search) inCore(t *testing.T, pid int) *remains {
	t.Helper()
	name := filepath.Join(t.TempDir(), "core")
	if out, err := exec.Command("gcore", "-o", name, fmt.Sprint(pid)).CombinedOutput(); err != nil {
		if bytes.Contains(out, []byte("ptrace: Operation not permitted")) {
			t.Skip("gcore may not attach to a process here")
		}
		t.Fatalf("gcore: %v: %s", err, out)
	}
	f, err := os.Open(fmt.Sprintf("%s.%d", name, pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := s.begin()
	if err := r.read(f); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSearch shows that the search of TestAbsence finds the remains of a server that keeps
// codes naively.
func TestSearch(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CARDVAULT_TEST_SERVER=plain")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	base := strings.TrimSpace(line)
	client := &http.Client{Transport: &http.Transport{}}
	post := func(path, body string) {
		w, err := client.Post(base+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer w.Body.Close()
		if _, err := io.Copy(io.Discard, w.Body); err != nil || w.StatusCode != 200 {
			t.Fatalf("%s answers %d, %v", path, w.StatusCode, err)
		}
	}
	b := newBrood()
	for range 200 {
		post("/import", b.fill(cardWithCode, "import"))
	}
	<-time.After(plainTTL + time.Second)
	s := newSearch(b.all)
	late := s.inMemory(t, cmd.Process.Pid)
	post("/collect", "")
	client.CloseIdleConnections()
	post("/collect", "")
	collected := s.inMemory(t, cmd.Process.Pid)
	codes := len(late.found(b.code))
	t.Logf("memory, 1 s after their time: %d of 200 codes, %d cards", codes, len(late.found(b.card)))
	if codes < 150 {
		t.Error("the search finds too few codes")
	}
	// The runtime decides how many stay in freed memory.
	codes = len(collected.found(b.code))
	t.Logf("memory, connections closed and garbage collected: %d of 200 codes, %d cards", codes, len(collected.found(b.card)))
	if codes == 0 {
		t.Error("the search finds nothing in freed memory")
	}
}
