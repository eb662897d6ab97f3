package forward

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cardvault/cardvault/forward/internal/exchange"
	"github.com/cardvault/cardvault/internal/egress"
	"github.com/cardvault/cardvault/internal/rule"
	"github.com/google/uuid"
)

// A Destination is a system to which cards may be sent. The operator names it in Go; nothing
// over REST can add one.
type Destination struct {
	// Name names the destination in the record of each use: the purpose is "forward:" and
	// the name. 1 to 40 of a-z, 0-9, "_" and "-", beginning with a letter or digit.
	Name string

	// URL is the origin and the prefix of paths, such as https://api.psp.example/v1/. The
	// prefix ends at a slash: /v1 allows /v1 and /v1/charges, and not /v10. Where several
	// destinations match, the longest prefix alone counts.
	URL string

	// Methods defaults to POST alone.
	Methods []string

	// Accounts may forward to the destination. All may if it is empty.
	Accounts []uuid.UUID

	// Sign, if it is not nil, adds headers that depend on the request, after the card was put
	// into the body and before the body is sent. In r.Header a value with placeholders is
	// still as the caller wrote it. Sign must keep neither r nor body. Its error ends the
	// forward before anything is sent.
	Sign func(r *http.Request, body []byte) error

	// Credential returns a credential of the operator for an account, which
	// {{ destination.NAME }} in a header stands for. If it is nil, or returns a zero
	// Credential, [Forwarder.SetCredential] has stored it, or the name is not known. Its
	// error ends the forward before anything is sent.
	Credential func(ctx context.Context, account uuid.UUID, name string) (Credential, error)

	// Certificate is shown to the destination if it asks for one.
	Certificate *tls.Certificate

	// Roots are the authorities of the destination's certificate. If nil, the system's.
	Roots *x509.CertPool

	// HTTP2 speaks HTTP/2, else HTTP/1.1. The buffers of HTTP/2 belong to net/http and are
	// not erased after a request.
	HTTP2 bool

	// Timeout limits a forward, from the look-up of the host to the end of the answer.
	// Defaults to 30 seconds; at most 2 minutes.
	Timeout time.Duration

	// MaxAnswer limits the body of an answer, decompressed, in bytes. Defaults to 1 MiB; at
	// most 16 MiB.
	MaxAnswer int
}

const (
	defaultTimeout, maxTimeout = 30 * time.Second, 2 * time.Minute
	defaultAnswer, maxAnswer   = 1 << 20, 16 << 20
	maxURL                     = 2048
	keepAlive                  = 30 * time.Second
	schemeHTTP, schemeHTTPS    = "http", "https"
	methodsAllowed             = "GET HEAD POST PUT PATCH DELETE"
)

// A destination is a Destination that was checked.
type destination struct {
	Destination
	url    *url.URL
	prefix string // of paths, without a slash at its end
	dialer *net.Dialer
	client *exchange.Client
}

// newDestination checks a destination.
func newDestination(d Destination, opts *Options) (*destination, error) {
	if d.Name == "" || rule.Slug(d.Name) != nil {
		return nil, errors.New("forward: Destination.Name must be 1 to 40 of a-z, 0-9, _ and -, beginning with a letter or digit")
	}
	fail := func(what string) error { return fmt.Errorf("forward: destination %s: %s", d.Name, what) }

	u, err := parseURL(d.URL)
	switch {
	case err != nil:
		return nil, fail("URL " + err.Error())
	case u.RawQuery != "" || u.ForceQuery:
		return nil, fail("URL must not have a query")
	case u.Scheme == schemeHTTP && !(opts.AllowLoopback && isLoopback(u.Hostname())):
		return nil, fail("URL must be https, or http on a loopback host with Options.AllowLoopback")
	case d.Timeout < 0 || d.Timeout > maxTimeout:
		return nil, fail("Timeout must be at most 2 minutes")
	case d.MaxAnswer < 0 || d.MaxAnswer > maxAnswer:
		return nil, fail("MaxAnswer must be at most 16 MiB")
	case d.HTTP2 && u.Scheme != schemeHTTPS:
		return nil, fail("HTTP2 needs https")
	}

	d.Methods, d.Accounts = slices.Clone(d.Methods), slices.Clone(d.Accounts)
	if len(d.Methods) == 0 {
		d.Methods = []string{http.MethodPost}
	}
	for _, m := range d.Methods {
		if !isMethod(m) {
			return nil, fail("Methods must be of " + methodsAllowed)
		}
	}
	if d.Timeout == 0 {
		d.Timeout = defaultTimeout
	}
	if d.MaxAnswer == 0 {
		d.MaxAnswer = defaultAnswer
	}

	dialer := &net.Dialer{KeepAlive: keepAlive, Control: egress.Control}
	if opts.AllowLoopback {
		dialer.Control = egress.ControlLoopback
	}
	dial := exchange.Dial(dialer.DialContext)
	if opts.Dial != nil {
		dial = opts.Dial
	}
	config := &tls.Config{RootCAs: d.Roots, MinVersion: tls.VersionTLS12}
	if d.Certificate != nil {
		config.Certificates = []tls.Certificate{*d.Certificate}
	}
	client := exchange.New(exchange.Config{Origin: u, TLS: config, Dial: dial, HTTP2: d.HTTP2})
	return &destination{d, u, strings.TrimSuffix(u.Path, "/"), dialer, client}, nil
}

func isLoopback(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }

func isMethod(m string) bool { return slices.Contains(strings.Fields(methodsAllowed), m) }

// parseURL parses a URL that every system reads alike: it has a host, no user, no fragment,
// and a plain path.
func parseURL(text string) (*url.URL, error) {
	if len(text) > maxURL {
		return nil, errors.New("must have at most 2048 characters")
	}
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return nil, errors.New("must be ASCII without spaces")
		}
	}

	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Opaque != "":
		return nil, errors.New("must be a URL with a host")
	case u.Scheme != schemeHTTPS && u.Scheme != schemeHTTP:
		return nil, errors.New("must be https")
	case u.User != nil:
		return nil, errors.New("must not have a user")
	case strings.Contains(text, "#"):
		return nil, errors.New("must not have a fragment")
	case !plainPath(u):
		return nil, errors.New("must have a path without . and .. and empty segments, backslashes, and escaped slashes, percent signs and control characters")
	}
	if u.Path == "" {
		u.Path = "/"
	}
	u.Host = strings.ToLower(u.Host)
	return u, nil
}

// plainPath reports whether no segment of a path can be taken for another.
func plainPath(u *url.URL) bool {
	if u.Path == "" {
		return true
	}
	for c := range strings.SplitSeq(strings.ToLower(u.EscapedPath()), "%") {
		if strings.HasPrefix(c, "2f") || strings.HasPrefix(c, "5c") || strings.HasPrefix(c, "25") {
			return false
		}
	}
	for _, c := range []byte(u.Path) {
		if c < ' ' || c == '\\' || c == 0x7f {
			return false
		}
	}

	segments := strings.Split(u.Path, "/")
	for i, s := range segments {
		name, _, _ := strings.Cut(s, ";") // which some take for a parameter of the segment
		dots := name != "" && strings.Trim(name, ". ") == ""
		if dots || name == "" && i > 0 && i < len(segments)-1 {
			return false
		}
	}
	return segments[0] == "" && utf8.ValidString(u.Path)
}

// origin returns what makes two URLs lead to the same system.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{schemeHTTP: "80", schemeHTTPS: "443"}[u.Scheme]
	}
	return u.Scheme + "://" + net.JoinHostPort(u.Hostname(), port)
}

// find returns the destination of a request, or ErrDestination. A path that some systems take
// for one of a longer prefix, and others do not, has none.
func find(all []*destination, method string, u *url.URL) (*destination, error) {
	var found, closest *destination
	for _, d := range all {
		if origin(u) != origin(d.url) || !within(loose(u.Path), loose(d.prefix)) {
			continue
		}
		if closest == nil || len(d.prefix) > len(closest.prefix) {
			closest = d
		}
		if within(u.Path, d.prefix) && (found == nil || len(d.prefix) > len(found.prefix)) {
			found = d
		}
	}
	if found == nil || len(found.prefix) < len(closest.prefix) || !slices.Contains(found.Methods, method) {
		return nil, ErrDestination
	}
	return found, nil
}

// within reports whether a path is the prefix, or below it.
func within(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '/')
}

// loose returns a path as the least exact systems read it: without regard to case, to
// parameters of segments, and to dots and blanks at the end of segments.
func loose(path string) string {
	segments := strings.Split(strings.ToLower(path), "/")
	for i, s := range segments {
		name, _, _ := strings.Cut(s, ";")
		segments[i] = strings.TrimRight(name, ". ")
	}
	return strings.Join(segments, "/")
}

// admits returns ErrDestination unless an account may forward to d.
func (d *destination) admits(account uuid.UUID) error {
	if len(d.Accounts) > 0 && !slices.Contains(d.Accounts, account) {
		return ErrDestination
	}
	return nil
}
