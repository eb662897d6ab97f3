// Package transcript plays the documented behaviour of the REST API, which is in
// files, on whatever keeps the records and serves them.
//
// A file is a sequence of paragraphs:
//
//	# Lines with a hash are comments.
//	@wait 15m                                  time passes
//	@on closed                                 the next request goes to another handler, see newWorld
//	@identify {id3} passed                     the shopper answers the challenge: passed or failed
//	@network                                   all that follow go to one whose vault has a network
//	@updater                                   as @network, and an account updater
//	@audit                                     from now on the vaults have an audit log
//	@run                                       from now on the vault does its background work
//	@damage                                    somebody changes the stored token that was made last
//	@provider                                  the next request has the headers of PPANHeaders
//	@encrypt {id1} {"security_code":"737"}     {payload} is that, as a browser encrypts it for a session
//	POST /tokens/session?x=1                   a request
//	Idempotency-Key: a                         its headers; X-Api-Key is {key} unless given, "-" for none
//	{"expiration_time":5}                      its body, which has a Content-Type unless one is given
//	= 200                                      the answer: status,
//	Idempotency-Replayed: true                 headers that not every answer has,
//	{"session_id":"{id1}"}                     body
//
// A body may continue in more lines; a line break and the blanks after it do not count. A
// body that begins with a double quote is a Go string. {name} stands for text: its first
// match, of the kind that its name begins with, fixes it for the rest of the file. See
// kinds, and newWorld for the predefined names. {spaces 9} is nine spaces.
//
// Every answer is checked for the headers that all have and no others. SecretCode
// is in none, nor in the log.
package transcript

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault/internal/bubble"
)

// A File is a transcript.
type File struct {
	Name string // without extension
	path string
	text []string // paragraphs
}

// Files returns the transcripts of a folder.
func Files(t *testing.T, dir string) []*File {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	var files []*File
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".txt")
		files = append(files, &File{name, path, strings.Split(strings.TrimSpace(string(text)), "\n\n")})
	}
	return files
}

// Play plays the transcript in a bubble of synctest in which it is 2026-11-21,
// midnight, on what setup, which is called there, returns. With several replicas a
// microsecond passes after each request, since what two of them make at one instant
// has no order, and times are not compared. With update the answers are written into
// the file as they are: read them.
func (f *File) Play(t *testing.T, update bool, setup func(t *testing.T) *Setup) {
	provider := startPSP(t)
	InBubble(t, func(t *testing.T) {
		s := setup(t)
		p := &player{world: newWorld(t, s, provider), answers: f.answers(), update: update, loose: len(s.Stores) > 1}
		for i, paragraph := range f.text {
			if p.loose && strings.Contains(paragraph, "@audit") {
				return // each process numbers its own records
			}
			f.text[i] = p.play(t, paragraph)
		}
		NoEcho(t, "log", p.world.log.String())
	})
	if update {
		if err := os.WriteFile(f.path, []byte(strings.Join(f.text, "\n\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// answers returns all answers of the file.
func (f *File) answers() string {
	var b strings.Builder
	for _, paragraph := range f.text {
		_, answer, _ := strings.Cut(paragraph, "\n=")
		b.WriteString(answer)
	}
	return b.String()
}

// InBubble runs f in a bubble of synctest in which it is 2026-11-21, midnight.
func InBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)))
		f(t)
	})
}

// kinds are what a placeholder matches at first.
var kinds = []struct{ name, pattern string }{
	{"id", `[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`},
	{"time", `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z`},
	{"key", `vk_test_[0-9a-f]{8}_[0-9A-Za-z]{49}`},
	{"fingerprint", `[0-9a-f]{64}`},
	{"jwe", `eyJ[\w-]+(?:\.[\w-]+){4}`},
	{"modulus", `[\w-]{342}`},
	{"tag", `[0-9a-f]{32}`},
	{"par", `SIM1[A-Z2-7]{25}`}, // payment account references of package simnet
	{"secret", `whsec_[A-Za-z0-9+/]{43}=`},
	{"payment", `[0-9A-Za-z_-]{43}`},
	{"object", `\{.*\}`},
	{"size", `\d+`},
}

var placeholder = regexp.MustCompile(`\{([a-z]+)(\d*)\}|\{spaces (\d+)\}`)

type player struct {
	world   *world
	answers string // of the file, as it was read
	update  bool
	loose   bool   // times are not compared
	on      string // the handler of requests that name none
}

// play plays one paragraph and returns it with the answer that came.
func (p *player) play(t *testing.T, paragraph string) string {
	t.Helper()
	r := request{on: p.on}
	lines := strings.Split(paragraph, "\n")
	i := 0

	for ; i < len(lines) && !strings.HasPrefix(lines[i], "="); i++ {
		p.read(t, lines[i], &r)
	}

	if r.method == "" {
		return paragraph
	}

	r.complete(t, p.world.values["key"])
	h := p.world.handlers[r.on]
	if h == nil {
		t.Fatalf("there is no handler %s", r.on)
	}
	if r.on == "limited" {
		// Revocations are counted apart, and each vault has limits of its own.
		for _, call := range [][2]string{{"GET", "/tokens"}, {"DELETE", "/api-keys/x"}} {
			for range p.world.vaults {
				Send(t, h, call[0], call[1], "", "X-Api-Key", p.world.values["key"])
			}
		}
	}

	where := paragraph
	if i < len(lines) {
		where = strings.Join(lines[:i], "\n")
	}

	want := unwrap(lines[i:])
	if s := p.world.setup; s.IgnoreUnknown {
		if strings.Contains(want, `"code":"unknown_`) || r.method == http.MethodHead && want == "= 422" {
			return paragraph
		}
		r.addUnknown()
	} else if s.OmitAbsent {
		want = withoutNull(want)
	}

	synctest.Wait() // due background work is done
	actual := p.ask(t, h, &r, paragraph)
	switch {
	case p.match(t, want, actual):
	case p.update:
		return where + "\n" + p.record(want, actual)
	default:
		t.Errorf("%s\nwant: %s\ngot:  %s", where, want, actual)
	}
	return paragraph
}

// read reads a line of a paragraph before its answer: it does what a directive says, or adds
// to the request.
func (p *player) read(t *testing.T, line string, r *request) {
	t.Helper()

	switch {
	case strings.HasPrefix(line, "#"):
	case strings.HasPrefix(line, "@wait "):
		d, err := time.ParseDuration(line[len("@wait "):])
		if err != nil {
			t.Fatal(err)
		}
		p.world.wait(t, d)
	case strings.HasPrefix(line, "@on "):
		r.on = line[len("@on "):]
	case line == "@run":
		p.world.run(t, p.world.vaults)
	case line == "@audit":
		p.world.addAudit(t)
	case line == "@damage":
		p.world.damage(t)
	case line == "@provider":
		r.headers = append(r.headers, PPANHeaders...)
	case strings.HasPrefix(line, "@encrypt "):
		id, claims, _ := strings.Cut(p.fill(t, line[len("@encrypt "):]), " ")
		p.world.values["payload"] = Encrypt(t, Send(t, p.world.handlers[""], "GET", "/sessions/"+id, ""), claims, id)
	case strings.HasPrefix(line, "@identify "):
		reference, how, _ := strings.Cut(p.fill(t, line[len("@identify "):]), " ")
		if err := p.world.sim.Control().EndIdentification(t.Context(), reference, how == "passed"); err != nil {
			t.Fatal(err)
		}
	case line == "@network", line == "@updater":
		p.world.addNetwork(t, line == "@updater")
		p.on, r.on = "network", "network"
	default:
		r.read(p.fill(t, line))
	}
}

// ask sends a request and returns the answer as a transcript has it.
func (p *player) ask(t *testing.T, h http.Handler, r *request, paragraph string) string {
	t.Helper()
	got := Send(t, h, r.method, r.target, r.body, r.headers...)
	for _, f := range p.world.forwarders {
		f.Close() // else time would stand still
	}
	if p.loose {
		time.Sleep(time.Microsecond)
	}

	image := strings.Contains(got.Header.Get("Content-Type"), "image/")
	if !image && got.Status != http.StatusNotModified {
		CheckCommon(t, r.method, got)
		NoEcho(t, paragraph, fmt.Sprint(got.Header), got.Body)
	}

	answer := ExtraHeaders(got)
	switch {
	case image:
		answer = append(answer, got.Header.Get("Content-Type")+" of "+strconv.Itoa(len(got.Body))+" bytes")
	case got.Body != "":
		answer = append(answer, strings.ReplaceAll(got.Body, "\n", "")) // of lines
	}

	actual := fmt.Sprintf("= %d", got.Status)
	if len(answer) > 0 {
		actual += "\n" + strings.Join(answer, "\n")
	}
	return actual
}

type request struct {
	on, method, target, body string
	headers                  []string
}

var headerLine = regexp.MustCompile(`^([A-Za-z0-9-]+): ?(.*)$`)

func (r *request) read(line string) {
	if r.method == "" {
		r.method, r.target, _ = strings.Cut(line, " ")
		return
	}
	if m := headerLine.FindStringSubmatch(line); m != nil && r.body == "" {
		r.headers = append(r.headers, m[1], m[2])
		return
	}
	r.body += strings.TrimLeft(line, " \t")
}

// complete adds what a request has unless it says otherwise.
func (r *request) complete(t *testing.T, key string) {
	if strings.HasPrefix(r.body, `"`) {
		var err error
		if r.body, err = strconv.Unquote(r.body); err != nil {
			t.Fatalf("%s: %v", r.target, err)
		}
	}

	given := false
	for i := 0; i < len(r.headers); i += 2 {
		if strings.EqualFold(r.headers[i], "X-Api-Key") {
			given = true
			if r.headers[i+1] == "-" {
				r.headers = slices.Delete(r.headers, i, i+2)
				return
			}
		}
	}

	if !given {
		r.headers = append(r.headers, "X-Api-Key", key)
	}
}

// addUnknown adds what IgnoreUnknown drops, unless the request cannot be read anyway or is
// as large as it may be.
func (r *request) addUnknown() {
	if strings.HasPrefix(r.target, "/") && strings.Count(r.target, "&") < 100 {
		separator := "?"
		if strings.Contains(r.target, "?") {
			separator = "&"
		}
		r.target += separator + "unknown=" + SecretPAN
	}

	if object := strings.TrimSpace(r.body); strings.HasPrefix(object, "{") && json.Valid([]byte(object)) && len(object) < 1000 {
		const unknown = `{"unknown":{"result":[null,"` + SecretCode + `"]},"Unknown":"` + SecretPAN + `"`
		if members := strings.TrimSpace(object[1:]); members != "}" {
			r.body = unknown + "," + members
		} else {
			r.body = unknown + members
		}
	}
}

var nulls = regexp.MustCompile(`"\w+":null,|,?"\w+":null`)

// withoutNull returns an answer without members that are null. No text in a transcript looks
// like one.
func withoutNull(answer string) string { return nulls.ReplaceAllString(answer, "") }

// fill replaces placeholders that have a value, and must all have one.
func (p *player) fill(t *testing.T, line string) string {
	return placeholder.ReplaceAllStringFunc(line, func(s string) string {
		if n, ok := strings.CutPrefix(s, "{spaces "); ok {
			count, _ := strconv.Atoi(strings.TrimSuffix(n, "}"))
			return strings.Repeat(" ", count)
		}
		value, ok := p.world.values[s[1:len(s)-1]]
		if !ok {
			t.Fatalf("%s has no value in %s", s, line)
		}
		return value
	})
}

// match reports whether actual is what want says, and keeps what new
// placeholders stand for.
func (p *player) match(t *testing.T, want, actual string) bool {
	var pattern strings.Builder
	var fresh []string // one for each group of pattern
	rest := 0
	for _, at := range placeholder.FindAllStringIndex(want, -1) {
		pattern.WriteString(regexp.QuoteMeta(want[rest:at[0]]))
		rest = at[1]
		name := want[at[0]+1 : at[1]-1]
		value, known := p.world.values[name]
		switch {
		case p.loose && strings.HasPrefix(name, "time"):
			pattern.WriteString(kind(t, name))
		case known:
			pattern.WriteString(regexp.QuoteMeta(value))
		default:
			fresh = append(fresh, name)
			pattern.WriteString("(" + kind(t, name) + ")")
		}
	}

	pattern.WriteString(regexp.QuoteMeta(want[rest:]))
	m := regexp.MustCompile("^(?s:" + pattern.String() + ")$").FindStringSubmatch(actual)
	if m == nil {
		return false
	}

	found := map[string]string{}
	for i, name := range fresh {
		if value, ok := found[name]; ok && value != m[i+1] {
			return false
		}
		found[name] = m[i+1]
	}

	maps.Copy(p.world.values, found)
	return true
}

func kind(t *testing.T, name string) string {
	for _, k := range kinds {
		if strings.TrimRight(name, "0123456789") == k.name {
			return k.pattern
		}
	}
	t.Fatalf("no kind of placeholder for {%s}", name)
	return ""
}

// record replaces values with their placeholders, and wraps long lines. New values have the names
// that the answer of before had for new values, since later requests use them.
func (p *player) record(former, actual string) string {
	var names []string
	for _, m := range placeholder.FindAllStringSubmatch(former, -1) {
		if name := m[1] + m[2]; p.world.values[name] == "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for name, value := range p.world.values {
		if len(value) >= 27 { // a value with a kind
			actual = strings.ReplaceAll(actual, value, "{"+name+"}")
		}
	}

	for _, k := range kinds[:9] {
		actual = regexp.MustCompile(k.pattern).ReplaceAllStringFunc(actual, func(value string) string {
			for name, v := range p.world.values {
				if v == value {
					return "{" + name + "}"
				}
			}
			name := p.newName(k.name, &names)
			p.world.values[name] = value
			return "{" + name + "}"
		})
	}

	const width = 110
	var wrapped []string
	for line := range strings.SplitSeq(actual, "\n") {
		for len(line) > width {
			cut := strings.LastIndex(line[:width], `,"`)
			if cut < 0 {
				if cut = strings.Index(line, `,"`); cut < 0 {
					break
				}
			}
			wrapped = append(wrapped, line[:cut+1])
			line = " " + line[cut+1:]
		}
		wrapped = append(wrapped, line)
	}

	return strings.Join(wrapped, "\n")
}

// newName takes the first name of a kind out of some, or returns a name that no answer has.
func (p *player) newName(like string, of *[]string) string {
	for i, name := range *of {
		if strings.TrimRight(name, "0123456789") == like {
			*of = slices.Delete(*of, i, i+1)
			return name
		}
	}
	for n := 1; ; n++ {
		if name := like + strconv.Itoa(n); p.world.values[name] == "" && !p.promised(name) {
			return name
		}
	}
}

// promised reports whether an answer of the file has a name: later requests use it.
func (p *player) promised(name string) bool { return strings.Contains(p.answers, "{"+name+"}") }

// unwrap undoes the wrapping of lines in record.
func unwrap(lines []string) string {
	var b strings.Builder
	for i, line := range lines {
		text := strings.TrimLeft(line, " ")
		if i > 0 && text == line {
			b.WriteByte('\n')
		}
		b.WriteString(text)
	}
	return b.String()
}

// common are the headers that every answer has.
var common = map[string]string{
	"Cache-Control":          `^no-store$`,
	"X-Content-Type-Options": `^nosniff$`,
	"X-Api-Version":          `^1\.0$`,
	"X-Request-Id":           `^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`,
}

// CheckCommon checks the headers that every answer has, and the headers of a body.
func CheckCommon(t testing.TB, method string, a *Answer) {
	t.Helper()
	for name, pattern := range common {
		if v := a.Header[name]; len(v) != 1 || !regexp.MustCompile(pattern).MatchString(v[0]) {
			t.Errorf("header %s is %q", name, v)
		}
	}

	contentType, length := a.Header["Content-Type"], a.Header["Content-Length"]
	switch {
	case a.Status == http.StatusNoContent:
		if len(contentType)+len(length)+len(a.Body) > 0 {
			t.Errorf("a 204 has content: %q %q %q", contentType, length, a.Body)
		}
	case len(contentType) == 1 && contentType[0] == "application/x-ndjson" && len(length) == 0:
		if method == "HEAD" && a.Body != "" || a.Body != "" && !strings.HasSuffix(a.Body, "}\n") {
			t.Errorf("the lines end with %.20q", a.Body[max(0, len(a.Body)-20):])
		}
	case len(contentType) != 1 || contentType[0] != "application/json":
		t.Errorf("content type is %q", contentType)
	case len(length) != 1 || method != "HEAD" && length[0] != strconv.Itoa(len(a.Body)):
		t.Errorf("content length is %q for %d bytes", length, len(a.Body))
	case method == "HEAD" && a.Body != "":
		t.Errorf("the answer to HEAD has a body: %q", a.Body)
	}
}

// mechanical are headers that have their own check, or belong to the connection.
var mechanical = []string{"Content-Type", "Content-Length", "Date"}

// ExtraHeaders returns the headers that not every answer has so, sorted.
func ExtraHeaders(a *Answer) []string {
	var lines []string
	for name, values := range a.Header {
		if pattern := common[name]; (pattern == "" || !regexp.MustCompile(pattern).MatchString(values[0])) && !slices.Contains(mechanical, name) {
			lines = append(lines, name+": "+strings.Join(values, " and "))
		}
	}
	slices.Sort(lines)
	return lines
}
