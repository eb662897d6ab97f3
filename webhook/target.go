package webhook

import (
	"errors"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/cardvault/cardvault/internal/egress"
)

const (
	maxURL  = 2048
	minPort = 1024 // except 443: below are services other than webhooks
)

var (
	errHost = errors.New("must have a public host")
	errPort = errors.New("must have port 443 or one from 1024 to 65535")
)

// uri is what target leaves to be checked of a URI.
var uri = regexp.MustCompile(`^https?://[^/?]+([/?]([\w.~!$&'()*+,;=:@/?-]|%[[:xdigit:]]{2})*)?$`)

// target parses a URL for deliveries, and checks whatever the text alone shows.
func (s *Sender) target(text string) (*url.URL, error) {
	if len(text) > maxURL {
		return nil, errors.New("must have at most 2048 characters")
	}
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c > '~' {
			return nil, errors.New("must be ASCII without spaces: a host in another script is written in punycode")
		}
	}

	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("must be a URL")
	case u.Scheme != "https" && (u.Scheme != "http" || !s.private):
		return nil, errors.New("must be https")
	case u.User != nil:
		return nil, errors.New("must not have a user")
	case strings.Contains(text, "#"):
		return nil, errors.New("must not have a fragment")
	}

	port := uint64(443)
	if p := u.Port(); p != "" {
		if port, err = strconv.ParseUint(p, 10, 16); err != nil {
			return nil, errPort
		}
	}

	host := u.Hostname()
	address, err := netip.ParseAddr(host)
	switch {
	case err != nil && !isName(host) || address.Zone() != "":
		return nil, errors.New("must have a host of letters, digits, dots and hyphens")
	case s.private:
		return u, nil
	case port != 443 && port < minPort:
		return nil, errPort
	case err == nil && !egress.Public(address), err != nil && !publicName(host):
		return nil, errHost
	}
	return u, nil
}

func isName(host string) bool {
	for i := range len(host) {
		c := host[i] | 0x20
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && host[i] != '_' {
			return false
		}
	}
	return len(host) > 0
}

// publicName reports whether a name may name a public host. Its last label begins with a
// letter: otherwise it may be an address in a form that only some resolvers accept, such as
// 0x7f.1 or 2130706433.
func publicName(host string) bool {
	i := strings.LastIndexByte(host, '.')
	top := strings.ToLower(host[i+1:])
	switch {
	case i < 0, top == "", top[0] < 'a', top == "localhost", top == "local", top == "internal":
		return false
	}
	return true
}
