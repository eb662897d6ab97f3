package sandbox

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/examples/internal/reference"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/payone"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/simnet"
	"github.com/google/uuid"
)

// A page is the sandbox for people: GET /, the reference at GET /reference, and what both
// call below /sandbox/.
//
// Below /sandbox/api/ are the REST API and the simulator, for one account. The cookie
// that comes with a page, another for each visit, stands for an API key there that cannot
// make other keys. Keys and secrets stay in this process, except the signing secret of a
// webhook, which is shown to its creator. Any browser that can load the page can use it.
type page struct {
	vault   *cardvault.Vault // in the account of the page
	account uuid.UUID
	secret  string // under which its payment data is encrypted
	recent  *events
	log     *slog.Logger
	policy  string      // Content-Security-Policy
	cookie  http.Cookie // except its value
	visits  visits
	mux     http.ServeMux
}

//go:embed page
var pageFiles embed.FS

var pageTemplates = template.Must(template.ParseFS(pageFiles, "page/*.html"))

// newPage returns the page of a sandbox for the account a, behind cookies that are made
// under a key.
func newPage(v *cardvault.Vault, a *Account, o *Options, key string, c *simnet.Control, recent *events) (*page, error) {
	baseURL, log := o.BaseURL, o.Log
	at, err := url.Parse(baseURL)
	if err != nil {
		return nil, err
	}

	p := &page{
		vault:   v.In(a.AccountID),
		account: a.AccountID,
		secret:  a.PaymentSecret,
		recent:  recent,
		log:     log,
		// Challenges are at baseURL, also if the page was loaded as localhost.
		policy: "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
			"frame-src 'self' " + baseURL + "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		cookie: http.Cookie{
			// Browsers send cookies to every port of a host.
			Name:     "cardvault-sandbox-" + at.Port(),
			Path:     "/sandbox",
			MaxAge:   int(visitTime.Seconds()),
			HttpOnly: true,
			SameSite: http.SameSiteStrictMode,
		},
		visits: visits(key),
	}

	html, err := render(baseURL, fromFile(o.File).key())
	if err != nil {
		return nil, err
	}
	about, err := renderReference(baseURL, fromFile(o.File).key())
	if err != nil {
		return nil, err
	}

	rest, err := httpapi.NewHandler(v, &httpapi.Options{Authenticator: p, Logger: log})
	if err != nil {
		return nil, err
	}

	p.mux.HandleFunc("GET /{$}", p.visit(html))
	p.mux.HandleFunc("GET "+referencePath, p.visit(about))
	for _, name := range []string{"page/page.css", "page/page.js", "page/icon.svg"} {
		p.mux.HandleFunc("GET /sandbox/"+path.Base(name), pageFile(pageFiles, name))
	}
	for _, name := range []string{"reference.css", "reference.js"} {
		p.mux.HandleFunc("GET /sandbox/"+name, pageFile(reference.Files, name))
	}

	p.mux.Handle("/sandbox/api/", http.StripPrefix("/sandbox/api", rest))
	p.mux.Handle("/sandbox/api/simulator/", http.StripPrefix("/sandbox/api", newSimulator(p, v, c, log)))
	p.mux.HandleFunc("GET /sandbox/live", p.live)
	p.mux.HandleFunc("POST /sandbox/open", p.open)
	p.mux.HandleFunc("/sandbox/", func(w http.ResponseWriter, _ *http.Request) { notFound.write(w) })
	return p, nil
}

// referencePath is where the reference is.
const referencePath = "/reference"

// renderReference returns the reference of the REST API.
func renderReference(baseURL, key string) ([]byte, error) {
	_, contract := httpapi.OpenAPI()
	o := &reference.Options{
		Home:    "/",
		BaseURL: baseURL,
		Key:     key,
		Files:   "/sandbox/",
		Style:   "/sandbox/page.css",
		Icon:    "/sandbox/icon.svg",
		API:     "/sandbox/api",
	}
	for _, s := range pageScopes {
		o.Scopes = append(o.Scopes, string(s))
	}
	return reference.Page(contract, o)
}

// pageFile returns a handler that answers with a file of a page.
func pageFile(files fs.FS, name string) http.HandlerFunc {
	mediaType := map[string]string{ // the system's may be another
		".css": "text/css; charset=utf-8",
		".js":  "text/javascript; charset=utf-8",
		".svg": "image/svg+xml",
	}[path.Ext(name)]
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		http.ServeFileFS(w, r, files, name)
	}
}

// foreign reports whether a host is a name other than localhost: a name that leads here, so
// that another site's page could read this one.
func foreign(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	_, err := netip.ParseAddr(name)
	return err != nil && name != "localhost"
}

// sameOrigin reports whether a request may come from the page. SameSite on the cookie is
// not enough: a shop on another port has the same site.
func sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return new(http.CrossOriginProtection).Check(r) == nil
	}
	return false
}

var (
	foreignHost = &failure{421, "MISDIRECTED_REQUEST", "The sandbox does not serve this host name.", "", ""}
	crossOrigin = &failure{403, "CROSS_ORIGIN", "Only the sandbox page may call this.", "", ""}
	noCookie    = &failure{401, "UNAUTHORIZED", "This page has expired, or the sandbox was restarted. Reload the page.", "", ""}
)

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", p.policy)
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	switch {
	case foreign(r.Host):
		foreignHost.write(w)
		return
	case r.URL.Path == "/", r.URL.Path == referencePath:
		p.mux.ServeHTTP(w, r)
		return
	case !sameOrigin(r):
		crossOrigin.write(w)
		return
	}

	if !p.knows(r) {
		noCookie.write(w)
		return
	}
	p.mux.ServeHTTP(w, r)
}

// knows reports whether a request has the cookie of a visit.
func (p *page) knows(r *http.Request) bool {
	cookie, err := r.Cookie(p.cookie.Name)
	return err == nil && p.visits.know(cookie.Value)
}

// visits is a key under which the cookies of visits are made. No cookie is stored, so there
// may be any number, and replicas that share the key accept each other's.
type visits string

// visitTime limits a visit.
const visitTime = 8 * time.Hour

// A cookie is when its visit ends, in seconds of Unix time, random bytes, and a MAC of both.
const (
	visitEnd    = 8
	visitRandom = 16
)

// begin returns the cookie of a new visit.
func (v visits) begin() string {
	b := binary.BigEndian.AppendUint64(nil, uint64(time.Now().Add(visitTime).Unix()))
	b = append(b, make([]byte, visitRandom)...)
	rand.Read(b[visitEnd:])
	return base64.RawURLEncoding.EncodeToString(append(b, v.mac(b)...))
}

// know reports whether a cookie belongs to a visit that has not ended.
func (v visits) know(cookie string) bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(cookie)
	if err != nil || len(b) != visitEnd+visitRandom+sha256.Size {
		return false
	}
	said, mac := b[:visitEnd+visitRandom], b[visitEnd+visitRandom:]
	return hmac.Equal(mac, v.mac(said)) && time.Now().Unix() < int64(binary.BigEndian.Uint64(said))
}

func (v visits) mac(said []byte) []byte {
	h := hmac.New(sha256.New, []byte(v))
	h.Write(said)
	return h.Sum(nil)
}

// Authenticate implements [httpapi.Authenticator] for the cookie. Whom it stands for
// enters cards in sessions, reads, changes, provisions, pays with and deletes tokens, and has
// webhooks: to register one is to have this server send requests, in a sandbox also
// to this machine. It can make no API key and import no card.
func (p *page) Authenticate(r *http.Request) (*httpapi.Principal, error) {
	if !p.knows(r) {
		return nil, cardvault.ErrUnauthenticated
	}
	a, err := p.vault.Account(r.Context())
	if err != nil {
		return nil, err
	}
	return &httpapi.Principal{Account: a, Name: "page", Scopes: pageScopes}, nil
}

// pageScopes are what the cookie of a page may do.
var pageScopes = []cardvault.Scope{
	cardvault.ScopeSessionsCreate,
	cardvault.ScopeTokensRead, cardvault.ScopeTokensUpdate, cardvault.ScopeTokensDelete,
	cardvault.ScopeNetworkTokensProvision,
	cardvault.ScopePaymentDataCreate, cardvault.ScopePaymentDataRead,
	cardvault.ScopeSecurityCodeRead, cardvault.ScopeSecurityCodeRefresh, cardvault.ScopeSecurityCodeConsume,
	cardvault.ScopeWebhooksRead, cardvault.ScopeWebhooksWrite,
}

// visit returns a handler that answers with a page, and with the cookie of a new visit.
func (p *page) visit(html []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		cookie := p.cookie
		cookie.Value = p.visits.begin()
		http.SetCookie(w, &cookie)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(html) // the client is gone if this fails
	}
}

// maxLive bounds how many tokens the page can ask about at a time.
const maxLive = 50

var tooManyTokens = &failure{422, "VALIDATION_FAILED", fmt.Sprintf("The query may name at most %d tokens.", maxLive), "", ""}

// live answers questions that the list of tokens leaves open: until when the vault has the
// security codes of some, and events after one of them.
func (p *page) live(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if len(query["token"]) > maxLive {
		tooManyTokens.write(w)
		return
	}

	codes := map[uuid.UUID]time.Time{}
	for _, token := range query["token"] {
		id, _ := parseID(token) // if malformed, zero, which no token has
		status, err := p.vault.SecurityCodeStatus(r.Context(), id)
		if err != nil && !errors.Is(err, cardvault.ErrNotFound) {
			p.log.Error("page", "error", err)
			internalError.write(w)
			return
		}
		if err == nil && status.Available {
			codes[id] = status.ExpiresAt
		}
	}

	after, _ := strconv.Atoi(query.Get("after")) // if malformed, all of them
	reply(w, struct {
		Codes  map[uuid.UUID]time.Time `json:"security_codes"`
		Events []event                 `json:"events"`
	}{codes, p.recent.since(p.account, after)})
}

// maxOpen bounds the body of open, in bytes.
const maxOpen = 8 << 10

var (
	notAsked      = &failure{400, "MALFORMED_REQUEST", "The body must be an object with encrypted_authentication_data, of at most 8 KiB.", "", ""}
	notForSandbox = &failure{422, "VALIDATION_FAILED", "The sandbox cannot decrypt this with its payment secret.", "", ""}
)

// open decrypts payment data as its merchant would.
func (p *page) open(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		JWE string `json:"encrypted_authentication_data"`
	}

	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxOpen))
	if err != nil || json.Unmarshal(body, &asked) != nil {
		notAsked.write(w)
		return
	}

	c, err := receive.OpenPaymentData(asked.JWE, receive.NewSharedSecret([]byte(p.secret)))
	if err != nil {
		notForSandbox.write(w)
		return
	}
	defer c.Number.Wipe()
	defer c.Cryptogram.Wipe()

	type networkToken struct {
		Number string `json:"token"`
		Year   int    `json:"expiry_year"`
		Month  int    `json:"expiry_month"`
	}

	answer := struct {
		Token      networkToken `json:"network_token"`
		Cryptogram *string      `json:"cryptogram"`
		ECI        *string      `json:"eci"`
	}{Token: networkToken{Year: c.Expiry.Year, Month: c.Expiry.Month}}

	c.Number.Expose(func(digits []byte) { answer.Token.Number = string(digits) })
	c.Cryptogram.Expose(func(text []byte) {
		if len(text) > 0 {
			answer.Cryptogram = new(string(text))
		}
	})
	if c.ECI != "" {
		answer.ECI = &c.ECI
	}

	reply(w, answer)
}

// reply answers with a value that has a JSON form.
func reply(w http.ResponseWriter, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client is gone if this fails
}

// An event is what the page shows of a [cardvault.Event].
type event struct {
	account   uuid.UUID
	Number    int                 `json:"number"` // in order of arrival, from 1
	ID        uuid.UUID           `json:"id"`
	CreatedAt time.Time           `json:"created_at"`
	Type      receive.EventType   `json:"event_type"`
	Reason    receive.EventReason `json:"reason"`
	TokenID   uuid.UUID           `json:"token_id"`
	Card      string              `json:"masked_account_number,omitempty"`
	Status    string              `json:"network_token_status,omitempty"`
}

// maxEvents limits the kept events.
const maxEvents = 200

// events are the latest of all accounts, in memory. The zero value is ready.
type events struct {
	mu     sync.Mutex
	number int
	latest []event // in order of arrival
}

// Event implements [cardvault.EventSink].
func (e *events) Event(_ context.Context, passed *cardvault.Event) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.number++
	x := event{passed.Account, e.number, passed.ID, passed.CreatedAt, passed.Type, passed.Reason, passed.TokenID, "", ""}
	if t := passed.Token; t != nil {
		x.Card, x.Status = t.MaskedAccountNumber, t.NetworkTokenStatus.String()
	}
	if len(e.latest) == maxEvents {
		e.latest = append(e.latest[:0], e.latest[1:]...)
	}
	e.latest = append(e.latest, x)
	return nil
}

// since returns the events of an account after the one of a number.
func (e *events) since(account uuid.UUID, number int) []event {
	e.mu.Lock()
	defer e.mu.Unlock()
	since := []event{}
	for _, x := range e.latest {
		if x.account == account && x.Number > number {
			since = append(since, x)
		}
	}
	return since
}

// A testCard is one of the simulator, with its outcome.
type testCard struct {
	scheme   card.Scheme // VISA if it is zero
	scenario int
	Course   string
}

// Number returns the card number: a test card, and of no use elsewhere.
func (c testCard) Number() (number string) {
	if c.scheme == card.UnknownScheme {
		c.scheme = card.VISA
	}
	simnet.ScenarioPAN(c.scheme, c.scenario).Expose(func(digits []byte) { number = string(digits) })
	return number
}

// testCards are the cards that the page offers.
var testCards = []struct {
	Name  string
	Cards []testCard
}{
	{"Network tokens", []testCard{
		{0, 0, "active at once, like every card not listed here"},
		{0, 1, "active after 2 seconds, reported by a notice"},
		{0, 2, "active after 2 seconds; the notice is lost, and polling finds it"},
		{0, 10, "failed: the card is not eligible"},
		{0, 11, "failed: no more tokens are allowed for this card"},
		{0, 12, "failed: declined by the issuer"},
		{0, 13, "failed; the next request succeeds"},
		{0, 14, "two transient errors, then active"},
		{0, 15, "failed: errors until the retries are used up"},
		{0, 20, "not available: the merchant is not enrolled"},
		{0, 21, "not available; the next request succeeds"},
		{0, 50, "active; provisioning takes 2 seconds"},
		{0, 51, "failed: provisioning times out every time"},
		{0, 60, "active; notices arrive twice and out of order"},
		{0, 61, "active, although the first response is lost"},
		{0, 70, "active after the cardholder is identified, else failed"},
		{0, 71, "active, and supports device binding"},
	}},
	{"Later changes", []testCard{
		{0, 30, "active, then suspended"},
		{0, 31, "active, suspended, active again"},
		{0, 32, "active, then deleted by the issuer"},
		{0, 33, "active, then the card is invalidated"},
		{0, 34, "active, then the card gets a new number"},
		{0, 35, "active, then the card gets a new expiry date"},
		{0, 36, "active, then the card gets new art"},
		{0, 37, "active, then the network token gets a new number and expiry date"},
	}},
	{"Account updater", []testCard{
		{0, 90, "submitted within 3 minutes; then the card gets a new number and expiry date"},
		{0, 91, "submitted within 3 minutes; then the card gets a new expiry date"},
		{0, 92, "submitted within 3 minutes; then the card is invalid: its account is closed"},
		{0, 93, "submitted within 3 minutes; nothing changes: the cardholder needs to be asked"},
		{0, 94, "submitted within 3 minutes, and never again: the cardholder has opted out"},
	}},
	{"Payment data", []testCard{
		{0, 40, "declined by the scheme"},
		{0, 41, "refused: the merchant is not enrolled"},
		{0, 42, "takes 2 seconds"},
		{0, 43, "times out"},
		{0, 44, "fails twice, then succeeds"},
		{0, 45, "succeeds without an ECI"},
	}},
	{"Pseudo card numbers", []testCard{
		{0, 80, "obtain-ppan returns VALID, as for every card not listed here"},
		{0, 81, "obtain-ppan returns INVALID"},
		{0, 82, "obtain-ppan returns ERROR"},
	}},
	{"Other schemes", []testCard{
		{card.Mastercard, 0, "Mastercard: active at once"},
		{card.AmericanExpress, 0, "American Express: active at once"},
		{card.Discover, 0, "Discover: active at once"},
		{card.DinersClub, 0, "Diners Club: not available; the scheme is not enabled"},
		{card.JCB, 0, "JCB: not available; the scheme is not enabled"},
		{card.UnionPay, 0, "UnionPay: not available; the scheme is not enabled"},
	}},
}

// render returns the page as it is sent, with nothing of the vault on it.
func render(baseURL, key string) ([]byte, error) {
	data := struct {
		BaseURL, Key, PortalKey, Hash string
		TestCards                     any
	}{BaseURL: baseURL, Key: key, PortalKey: simnet.PortalKey, TestCards: testCards}
	hash := payone.Hash(simnet.PortalKey, payone.HashParameters{AID: "22222", MID: "11111", PortalID: "3333333", Sandbox: true})
	hash.Expose(func(text []byte) { data.Hash = string(text) })
	var html bytes.Buffer
	err := pageTemplates.ExecuteTemplate(&html, "index.html", data)
	return html.Bytes(), err
}
