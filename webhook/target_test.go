package webhook_test

import (
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/nametest"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/cardvault/cardvault/webhook"
	"github.com/cardvault/cardvault/webhook/webhooktest"
)

// here lists ways to write this machine's address; each works on some system.
var here = []string{
	"127.0.0.1", "127.0.0.2", "127.255.255.254", "0.0.0.0", "[::1]", "[::]",
	"[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::127.0.0.1]",
	"127.1", "127.0.1", "0127.0.0.1", "0177.0.0.1", "0177.1", "017700000001", "0x7f.0.0.1", "0x7f.1",
	"0x7f000001", "0X7F000001", "2130706433", "127.0.0.0x1", "0", "0x0", "00.0.0.0", "127.0.0.1.",
	"localhost", "LOCALHOST", "localhost.", "a.localhost", "a.LocalHost", "localhost.localdomain.",
	"ip6-localhost", "[::1%25lo]", "127%2e0%2e0%2e1", "%31%32%37.0.0.1", "①②⑦.⓪.⓪.①", "127。0。0。1", "ⓛocalhost",
}

// inside lists targets that are neither this machine nor public.
var inside = []string{
	"10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.255",
	"100.64.0.1", "100.100.100.200", "100.127.255.255", "169.254.0.1", "169.254.169.254", "0xa9fea9fe",
	"2852039166", "0251.0376.0251.0376", "192.0.0.1", "192.0.0.192", "192.0.2.1", "198.18.0.1",
	"198.19.255.255", "198.51.100.1", "203.0.113.1", "192.88.99.1", "192.31.196.1", "192.52.193.1",
	"192.175.48.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "0.1.2.3", "168.63.129.16",
	"[::ffff:10.0.0.1]", "[::ffff:a9fe:a9fe]", "[::ffff:168.63.129.16]", "[64:ff9b::7f00:1]",
	"[64:ff9b::10.0.0.1]", "[64:ff9b:1::1]", "[64:ff9b:1:ffff::a9fe:a9fe]", "[2002:7f00:1::]",
	"[2002:a00:1::1]", "[2001::1]", "[2001:0:7f00:1::]", "[2001:db8::1]", "[3fff::1]", "[2001:10::1]",
	"[2001:20::1]", "[2001:2::1]", "[fc00::1]", "[fd00:ec2::254]", "[fdff::1]", "[fe80::1]", "[fe80::1%25eth0]",
	"[febf::1]", "[fec0::1]", "[ff02::1]", "[ff0e::1]", "[100::1]", "[::2]", "[4000::1]", "[5f00::1]",
	"[2620:4f:8000::1]", "metadata", "metadata.google.internal", "printer.local", "intranet", "db.INTERNAL",
	"host.docker.internal.",
}

// No inside target can be reached, however the URL is written.
func TestHostileHosts(t *testing.T) {
	port, count := listen(t)
	s := webhook.New(nil)
	t.Cleanup(s.Close)
	names := new(nametest.Zone)
	names.Set("127.0.0.1", "::1") // all names lead here
	webhook.Resolve(s, names.Resolver())
	hosts := append(append([]string{}, here...), inside...)
	if len(hosts) < 60 {
		t.Fatalf("%d hosts", len(hosts))
	}
	for _, host := range hosts {
		target := "https://" + host + ":" + port + "/"
		if err := s.Check(&cardvault.Target{URL: target}); err == nil || strings.Contains(err.Error(), host) && len(host) > 1 {
			t.Errorf("Check(%q) = %v", target, err)
		}
		if got, err := s.Send(t.Context(), delivery(target)); err == nil || !strings.HasPrefix(err.Error(), "webhook: URL must ") {
			t.Errorf("%s: %+v, %v", target, got, err)
		}
	}
	if n := count(); n != 0 {
		t.Errorf("%d connections", n)
	}

	// The listener is where they would have arrived.
	open := webhook.New(&webhook.Options{AllowPrivateTargets: true})
	t.Cleanup(open.Close)
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "[::ffff:127.0.0.1]", "localhost"} {
		before := count()
		if _, err := open.Send(t.Context(), delivery("https://"+host+":"+port)); err == nil || count() == before {
			t.Errorf("%s was not reached: %v", host, err)
		}
	}
}

// special lists address ranges, from the IANA registries and elsewhere, that are never
// connected to, whatever the name.
var special = []string{
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
	"192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"168.63.129.16/32",
	"::/128", "::1/128", "::/96", "::ffff:0:0/104", "::ffff:127.0.0.0/104", "::ffff:169.254.0.0/112",
	"::ffff:10.0.0.0/104", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/32",
	"2001::/23", "2001:2::/48", "2001:db8::/32", "2001:10::/28", "2001:20::/28", "2002::/16",
	"2620:4f:8000::/48", "3fff::/20", "4000::/3", "5f00::/16", "8000::/1", "fc00::/7", "fe80::/10",
	"fec0::/10", "ff00::/8",
}

// ends returns the first and the last address of a range.
func ends(t *testing.T, cidr string) []string {
	t.Helper()
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		t.Fatal(err)
	}
	last := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(last)
	return []string{p.Masked().Addr().String(), a.String()}
}

// An innocent-looking name that leads to a forbidden address is refused when the connection
// is made.
func TestHostileNames(t *testing.T) {
	port, count := listen(t)
	names := new(nametest.Zone)
	s := webhook.New(nil)
	t.Cleanup(s.Close)
	webhook.Resolve(s, names.Resolver())
	var passed atomic.Int64
	webhook.Watch(s, func(string) bool { passed.Add(1); return true })
	target := "https://hooks.shop.example:" + port + "/hook"
	if err := s.Check(&cardvault.Target{URL: target}); err != nil {
		t.Fatal(err)
	}
	for _, cidr := range special {
		for _, address := range ends(t, cidr) {
			names.Set(address)
			_, err := s.Send(t.Context(), delivery(target))
			if err == nil || err.Error() != "webhook: host is not at a public address" {
				t.Errorf("%s: %v", address, err)
			}
		}
	}
	if passed.Load() != 0 || count() != 0 {
		t.Errorf("%d addresses were let through, %d reached", passed.Load(), count())
	}

	// The same way without the rules.
	open := webhook.New(&webhook.Options{AllowPrivateTargets: true})
	t.Cleanup(open.Close)
	webhook.Resolve(open, names.Resolver())
	names.Set("127.0.0.1")
	if _, err := open.Send(t.Context(), delivery(target)); err == nil || count() != 1 {
		t.Errorf("%d connections, %v", count(), err)
	}
}

// Public addresses are connected to, including the neighbours of forbidden ranges.
func TestPublicAddresses(t *testing.T) {
	names := new(nametest.Zone)
	s := webhook.New(nil)
	t.Cleanup(s.Close)
	webhook.Resolve(s, names.Resolver())
	var to atomic.Value
	webhook.Watch(s, func(address string) bool { to.Store(address); return false })
	for _, address := range []string{
		"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
		"128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.167.255.255",
		"192.169.0.0", "198.17.255.255", "198.20.0.0", "168.63.129.15", "168.63.129.17", "223.255.255.255",
		"2000::1", "2001:200::1", "2606:4700:4700::1111", "2a00:1450:4001::1", "2003::1", "3ffe::1",
	} {
		names.Set(address)
		to.Store("")
		if _, err := s.Send(t.Context(), delivery("https://hooks.shop.example/")); err == nil {
			t.Error("there was an answer")
		}
		if want := netip.AddrPortFrom(netip.MustParseAddr(address), 443).String(); to.Load() != want {
			t.Errorf("%s: connects to %q", address, to.Load())
		}
		literal := strings.TrimSuffix(netip.AddrPortFrom(netip.MustParseAddr(address), 443).String(), ":443")
		if err := s.Check(&cardvault.Target{URL: "https://" + literal + "/"}); err != nil {
			t.Errorf("Check of %s: %v", literal, err)
		}
	}
}

// A name that is public first and private later, or both at once, does not reach this
// machine: only the addresses that were checked are dialed.
func TestRebinding(t *testing.T) {
	port, count := listen(t)
	names := new(nametest.Zone)
	s := webhook.New(nil)
	t.Cleanup(s.Close)
	webhook.Resolve(s, names.Resolver())
	var to []string
	webhook.Watch(s, func(address string) bool {
		to = append(to, address)
		return strings.HasPrefix(address, "127.") || strings.HasPrefix(address, "[::1]")
	})
	target := "https://hooks.shop.example:" + port
	for _, addresses := range [][]string{
		{"8.8.8.8"}, {"127.0.0.1"}, {"8.8.8.8", "127.0.0.1"}, {"127.0.0.1", "8.8.8.8"},
		{"::1", "8.8.8.8"}, {"::1", "127.0.0.1"}, {"::ffff:127.0.0.1", "8.8.8.8"},
	} {
		names.Set(addresses...)
		if got, err := s.Send(t.Context(), delivery(target)); err == nil {
			t.Errorf("%v has answered %+v", addresses, got)
		}
	}
	for _, address := range to {
		if address != "8.8.8.8:"+port {
			t.Errorf("connects to %s", address)
		}
	}
	if len(to) != 5 || count() != 0 {
		t.Errorf("connects to %v, %d times to this machine", to, count())
	}
}

func TestRedirects(t *testing.T) {
	port, count := listen(t)
	bothWays(t, webhook.Options{}, func(t *testing.T, in *inbox) {
		for _, code := range []int{300, 301, 302, 303, 307, 308} {
			for _, to := range []string{"http://127.0.0.1:" + port, "https://localhost:" + port, "//[::1]:" + port, "/again"} {
				in.Next(webhooktest.Redirect(code, to))
				before := len(in.Deliveries())
				got, err := in.send(t)
				if err != nil || got.StatusCode != code || len(in.Deliveries()) != before+1 {
					t.Errorf("%d to %s: %+v, %v, %d requests", code, to, got, err, len(in.Deliveries())-before)
				}
			}
		}
	})
	if n := count(); n != 0 {
		t.Errorf("%d connections", n)
	}
}

func TestCheck(t *testing.T) {
	strict, open := webhook.New(nil), webhook.New(&webhook.Options{AllowPrivateTargets: true})
	t.Cleanup(strict.Close)
	t.Cleanup(open.Close)
	const (
		none = iota
		private
		all
	)
	const marker = "4242424242424242"
	for _, c := range []struct {
		url string
		by  int // the senders that accept it
	}{
		{"https://shop.example", all},
		{"https://shop.example/hook?x=" + marker, all},
		{"https://Shop.Example:443/", all},
		{"https://shop.example/A-z.0~_!$&'()*+,;=:@//%C3?A-z.0~_!$&'()*+,;=:@/?%c3", all},
		{"https://a_b.shop.example:8443/%C3%BC", all},
		{"https://xn--bcher-kva.example/", all},
		{"https://shop.example:1024/", all},
		{"https://shop.example:65535/", all},
		{"https://shop.example?" + strings.Repeat("x", 2048-21), all},
		{"https://8.8.8.8/", all},
		{"https://[::ffff:8.8.8.8]/", all},
		{"https://[2606:4700:4700::1111]:8443/", all},

		{"http://shop.example/", private},
		{"http://localhost:8080/hook", private},
		{"http://127.0.0.1:80/", private},
		{"https://[::1]/", private},
		{"https://shop.example:22/", private},
		{"https://shop.example:80/", private},
		{"https://shop.example:1023/", private},
		{"https://shop.example./", private},
		{"https://shop/", private},
		{"https://shop.local/", private},
		{"https://0x7f.1/", private},
		{"https://shop.123/", private},

		{"HTTPS://shop.example/", none},
		{"hTTp://shop.example/", none},
		{"https://shop.example/{a}", none},
		{"https://shop.example/a|b", none},
		{`https://shop.example/?a\b`, none},
		{"https://shop.example/?^", none},
		{"https://shop.example?`", none},
		{`https://shop.example/"`, none},
		{"https://shop.example/<a>", none},
		{"https://shop.example/?a[]", none},
		{"https://shop.example/[a]", none},
		{"https://shop.example/?%4x", none},
		{"https://shop.example/?%", none},
		{"", none},
		{marker, none},
		{"/hook", none},
		{"//shop.example/", none},
		{"shop.example/hook", none},
		{"https:", none},
		{"https:/hook", none},
		{"https:shop.example", none},
		{"https:///hook", none},
		{"https://:443/", none},
		{"https://?x", none},
		{"ftp://shop.example/", none},
		{"file:///etc/passwd", none},
		{"gopher://shop.example/", none},
		{"javascript:alert(1)", none},
		{"https+unix://shop.example/", none},
		{"https://user@shop.example/", none},
		{"https://user:" + marker + "@shop.example/", none},
		{"https://@shop.example/", none},
		{"https://:@shop.example/", none},
		{"https://shop.example@127.0.0.1/", none},
		{"https://shop.example:443@127.0.0.1/", none},
		{"https://shop.example/#" + marker, none},
		{"https://shop.example/#", none},
		{"https://shop.example#@127.0.0.1/", none},
		{`https://shop.example\@127.0.0.1/`, none},
		{`https:\\shop.example\`, none},
		{"https://shop.example:65536/", none},
		{"https://shop.example:-1/", none},
		{"https://shop.example:https/", none},
		{"https://shop.example:443:443/", none},
		{"https://bücher.example/", none},
		{"https://ехаmple.com/", none},
		{"https://shop%2eexample/", none},
		{"https://b%C3%BCcher.example/", none},
		{"https://shop.example\u2044.evil.example/", none},
		{"https://shop.example/\n", none},
		{"https://shop.example/\r\nX-Evil: 1", none},
		{" https://shop.example/", none},
		{"https://shop.example/ x", none},
		{"https://shop.example/\x00", none},
		{"https://shop.example/\x7f", none},
		{"https://shop!.example/", none},
		{"https://shop.exa$mple/", none},
		{"https://[shop.example]/", none},
		{"https://[127.0.0.1]/", none},
		{"https://[::1/", none},
		{"https://::1/", none},
		{"https://[fe80::1%25eth0]/", none},
		{"https://shop.example?" + strings.Repeat("x", 2048-20), none},
	} {
		for name, err := range map[string]error{"strict": strict.Check(&cardvault.Target{URL: c.url}), "open": open.Check(&cardvault.Target{URL: c.url})} {
			if wanted := c.by == all || c.by == private && name == "open"; (err == nil) != wanted {
				t.Errorf("%s: Check(%q) = %v", name, c.url, err)
			}
			if err != nil {
				vaulttest.AssertNoLeak(t, []string{marker, "shop.example"}, err)
				if !strings.HasPrefix(err.Error(), "must ") {
					t.Errorf("Check(%q) = %v", c.url, err)
				}
			}
		}
	}
}

func FuzzCheck(f *testing.F) {
	for _, host := range append(append([]string{}, here...), inside...) {
		f.Add("https://" + host + "/")
	}
	f.Add("https://user@shop.example:8443/hook?x#y")
	s := webhook.New(nil)
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, text string) {
		if s.Check(&cardvault.Target{URL: text}) != nil {
			return
		}
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "https" || u.User != nil || u.Fragment != "" || len(text) > 2048 {
			t.Fatalf("%q passes", text)
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			if a = a.Unmap(); !a.IsGlobalUnicast() || a.IsPrivate() || a.IsLoopback() {
				t.Errorf("%q passes", text)
			}
		}
	})
}
