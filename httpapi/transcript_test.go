package httpapi_test

import (
	"flag"
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

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/memstore"
	"github.com/google/uuid"
)

var update = flag.Bool("update", false, "rewrite the answers in testdata/transcripts")

// TestTranscripts plays the files of testdata/transcripts, each on a vault of
// its own, on 2026-11-21 at midnight. A file is a sequence of paragraphs:
//
//	# Lines with a hash are comments.
//	@wait 15m                                  time passes
//	@on closed                                 the next request goes to another handler, see handlers
//	@identify {id3} passed                     the shopper answers the challenge: passed or failed
//	@network                                   all that follow go to one whose vault has a network
//	@run                                       from now on the vault does its background work
//	@provider                                  the next request has the headers of ppanHeaders
//	@encrypt {id1} {"security_code":"737"}     {payload} is that, as a browser encrypts it for a session
//	POST /tokens/session?x=1                   a request
//	Idempotency-Key: a                         its headers; X-Api-Key is {key} unless given, "-" for none
//	{"expiration_time":5}                      its body, which has a Content-Type unless one is given
//	= 200                                      the answer: status,
//	Idempotency-Replayed: true                 headers that not every answer has,
//	{"session_id":"{id1}"}                     body
//
// A body may go on in more lines; a line break and the blanks after it do not
// count. One that begins with a double quote is a Go string. {name} stands for
// text: what it matches first, by the kind that its name begins with, is what
// it is in the rest of the file. See kinds, and variables for the ones that are
// there from the beginning. {spaces 9} is nine spaces.
//
// Every answer is checked for the headers that all have and no others. secretCode
// is in none, nor in the log.
//
// With -update the answers are written as they are: read them.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/transcripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			paragraphs := strings.Split(strings.TrimSpace(string(text)), "\n\n")
			inBubble(t, func(t *testing.T) {
				p := newPlayer(t)
				for i, paragraph := range paragraphs {
					paragraphs[i] = p.play(t, paragraph)
				}
				noEcho(t, "log", p.rig.log.take())
			})
			if *update {
				if err := os.WriteFile(file, []byte(strings.Join(paragraphs, "\n\n")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
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
	{"secret", `whsec_[A-Za-z0-9+/]{43}=`},
	{"object", `\{.*\}`},
	{"size", `\d+`},
}

var placeholder = regexp.MustCompile(`\{([a-z]+)(\d*)\}|\{spaces (\d+)\}`)

type player struct {
	rig      *rig
	handlers map[string]http.Handler
	values   map[string]string
	on       string // the handler of requests that name none
	sim      *simnet.Network
}

func newPlayer(t *testing.T) *player {
	r := newRig(t, &cardvault.Options{PPAN: &provider{}, Webhooks: &sender{}}, nil)
	p := &player{rig: r}
	other := r.newAccount(t, nil)
	unapproved := r.newAccount(t, &cardvault.Approvals{})
	all := cardvault.AllScopes()
	key := func(v *cardvault.Vault, ttl time.Duration, scopes ...cardvault.Scope) string {
		_, text := r.newKey(t, v, ttl, scopes...)
		return text
	}
	revoked, revokedText := r.newKey(t, r.vault, 0, all...)
	if err := r.vault.DeleteAPIKey(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}
	p.values = map[string]string{
		"key":        r.key,
		"keyid":      r.principal.ID.String(),
		"other":      key(other, 0, all...),      // a key of another account
		"unapproved": key(unapproved, 0, all...), // of one that may not import
		"unscoped":   key(r.vault, 0, cardvault.ScopeWebhooksRead),
		"lister":     key(r.vault, 0, cardvault.ScopeAPIKeysRead),
		"maker":      key(r.vault, 0, cardvault.ScopeAPIKeysWrite, cardvault.ScopeTokensRead),
		"revoked":    revokedText,
		"expired":    key(r.vault, time.Second, all...),
		"malformed":  "vk_test_no",
		"unknown":    newRig(t, nil, nil).key,
		"nobody":     uuid.NewString(),
	}
	foreign, err := other.Import(t.Context(), cardvault.Card{
		PAN:    cardvault.NewPAN([]byte(pan)),
		Expiry: cardvault.Expiry{Month: 4, Year: 2031},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.values["foreign"] = foreign.ID.String() // a token of another account
	p.values["merchant"] = primaryMerchant(t, r.vault)
	p.values["foreigner"] = primaryMerchant(t, other) // a merchant of another account
	time.Sleep(2 * time.Second)

	disabled := r.opts
	disabled.PPAN, disabled.Webhooks = nil, nil
	closed := r.open(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	failing := &faultyStore{Store: r.store}
	failingVault := openVault(t, failing, &r.opts)
	failing.view.Store(pointer(store.ErrUnavailable))
	limited := newHandler(t, r.vault, &httpapi.Options{RateLimit: httpapi.RateLimit{PerSecond: 0.1}})
	p.handlers = map[string]http.Handler{
		"":         r.handler,
		"closed":   newHandler(t, closed, nil),
		"disabled": newHandler(t, openVault(t, r.store, &disabled), nil), // it has no provider and no sender
		"failing":  newHandler(t, failingVault, nil),                     // its store is unavailable
		"shop":     newHandler(t, r.vault, &httpapi.Options{AllowedOrigins: []string{shop}}),
		"limited":  limited, // {key} has just made its one request in ten seconds
	}
	return p
}

// addNetwork adds the handler "network": a vault on the same store whose network
// and IDVProvider are the simulator, and which does its background work.
func (p *player) addNetwork(t *testing.T) {
	sim, err := simnet.New(t.Context(), memstore.New(), &simnet.Options{ChallengeURL: "https://issuer.example/"})
	if err != nil {
		t.Fatal(err)
	}
	p.sim = sim
	opts := p.rig.opts
	opts.Network, opts.IDV, opts.BaseURL = sim, sim, "https://vault.example"
	v := openVault(t, p.rig.store, &opts)
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	run(t, v)
	p.handlers["network"] = newHandler(t, v, nil)
	second, err := v.CreateMerchant(t.Context(), "second")
	if err != nil {
		t.Fatal(err)
	}
	newSecret(t, v)
	p.values["secretless"] = second.ID.String() // a merchant without a shared secret
	p.values["ephemeral"] = p.rig.newEphemeral(t)
}

// run has a vault do its background work until the test ends.
func run(t *testing.T, v *cardvault.Vault) {
	done := make(chan error)
	go func() { done <- v.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// play plays one paragraph and returns it with the answer that came.
func (p *player) play(t *testing.T, paragraph string) string {
	t.Helper()
	r := request{on: p.on}
	lines := strings.Split(paragraph, "\n")
	i := 0
	for ; i < len(lines) && !strings.HasPrefix(lines[i], "="); i++ {
		switch line := lines[i]; {
		case strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "@wait "):
			d, err := time.ParseDuration(line[len("@wait "):])
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(d)
		case strings.HasPrefix(line, "@on "):
			r.on = line[len("@on "):]
		case line == "@run":
			run(t, p.rig.vault)
		case line == "@provider":
			r.headers = append(r.headers, ppanHeaders...)
		case strings.HasPrefix(line, "@encrypt "):
			id, claims, _ := strings.Cut(p.fill(t, line[len("@encrypt "):]), " ")
			p.values["payload"] = encrypt(t, send(t, p.handlers[""], "GET", "/sessions/"+id, ""), claims, id)
		case strings.HasPrefix(line, "@identify "):
			reference, how, _ := strings.Cut(p.fill(t, line[len("@identify "):]), " ")
			if err := p.sim.Control().EndIdentification(t.Context(), reference, how == "passed"); err != nil {
				t.Fatal(err)
			}
		case line == "@network":
			p.addNetwork(t)
			p.on, r.on = "network", "network"
		default:
			r.read(p.fill(t, line))
		}
	}
	if r.method == "" {
		return paragraph
	}
	r.complete(t, p.values["key"])
	if p.handlers[r.on] == nil {
		t.Fatalf("there is no handler %s", r.on)
	}
	if r.on == "limited" {
		send(t, p.handlers[r.on], "GET", "/tokens", "", "X-Api-Key", p.values["key"])
	}
	synctest.Wait() // what is due in the background is done
	got := send(t, p.handlers[r.on], r.method, r.target, r.body, r.headers...)
	image := strings.Contains(got.header.Get("Content-Type"), "image/")
	if !image && got.status != http.StatusNotModified {
		checkCommon(t, r.method, got)
		noEcho(t, paragraph, headerText(got.header), got.body)
	}
	where := paragraph
	if i < len(lines) {
		where = strings.Join(lines[:i], "\n")
	}
	answer := extraHeaders(got)
	switch {
	case image:
		answer = append(answer, got.header.Get("Content-Type")+" of "+strconv.Itoa(len(got.body))+" bytes")
	case got.body != "":
		answer = append(answer, got.body)
	}
	actual := fmt.Sprintf("= %d", got.status)
	if len(answer) > 0 {
		actual += "\n" + strings.Join(answer, "\n")
	}
	want := unwrap(lines[i:])
	switch {
	case p.match(t, want, actual):
	case *update:
		return where + "\n" + p.record(actual)
	default:
		t.Errorf("%s\nwant: %s\ngot:  %s", where, want, actual)
	}
	return paragraph
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

// fill replaces placeholders that have a value, and must all have one.
func (p *player) fill(t *testing.T, line string) string {
	return placeholder.ReplaceAllStringFunc(line, func(s string) string {
		if n, ok := strings.CutPrefix(s, "{spaces "); ok {
			count, _ := strconv.Atoi(strings.TrimSuffix(n, "}"))
			return strings.Repeat(" ", count)
		}
		value, ok := p.values[s[1:len(s)-1]]
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
		value, known := p.values[name]
		switch {
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
	maps.Copy(p.values, found)
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

// record writes placeholders for what they stand for, and wraps long lines.
func (p *player) record(actual string) string {
	for name, value := range p.values {
		if len(value) >= 27 { // what has a kind
			actual = strings.ReplaceAll(actual, value, "{"+name+"}")
		}
	}
	for _, k := range kinds[:8] {
		actual = regexp.MustCompile(k.pattern).ReplaceAllStringFunc(actual, func(value string) string {
			for name, v := range p.values {
				if v == value {
					return "{" + name + "}"
				}
			}
			name := ""
			for n := 1; name == "" || p.values[name] != ""; n++ {
				name = k.name + strconv.Itoa(n)
			}
			p.values[name] = value
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

// checkCommon checks the headers that every answer has, and those of a body.
func checkCommon(t testing.TB, method string, a *answer) {
	t.Helper()
	for name, pattern := range common {
		if v := a.header[name]; len(v) != 1 || !regexp.MustCompile(pattern).MatchString(v[0]) {
			t.Errorf("header %s is %q", name, v)
		}
	}
	contentType, length := a.header["Content-Type"], a.header["Content-Length"]
	switch {
	case a.status == http.StatusNoContent:
		if len(contentType)+len(length)+len(a.body) > 0 {
			t.Errorf("a 204 has content: %q %q %q", contentType, length, a.body)
		}
	case len(contentType) != 1 || contentType[0] != "application/json":
		t.Errorf("content type is %q", contentType)
	case len(length) != 1 || method != "HEAD" && length[0] != strconv.Itoa(len(a.body)):
		t.Errorf("content length is %q for %d bytes", length, len(a.body))
	case method == "HEAD" && a.body != "":
		t.Errorf("the answer to HEAD has a body: %q", a.body)
	}
}

// extraHeaders returns the headers that not every answer has so, sorted.
func extraHeaders(a *answer) []string {
	var lines []string
	for name, values := range a.header {
		if pattern := common[name]; (pattern == "" || !regexp.MustCompile(pattern).MatchString(values[0])) && name != "Content-Type" && name != "Content-Length" {
			lines = append(lines, name+": "+strings.Join(values, " and "))
		}
	}
	slices.Sort(lines)
	return lines
}
