package main

import (
	"testing"

	"github.com/cardvault/cardvault/simnet"
)

// obtainPPAN asks for a pseudo card number with the hash of a portal key.
func (p *process) obtainPPAN(t *testing.T, token, portalKey string) map[string]any {
	t.Helper()
	status, answer := p.ObtainPPAN(t, token, portalKey)
	if status != 200 {
		t.Fatalf("obtain-ppan answers %d %v", status, answer)
	}
	return answer
}

func TestProvider(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	for pan, want := range map[string]struct{ status, cardType, truncated string }{
		"4111110000000807":    {"VALID", "V", "411111XXXXXX0807"},
		"4111110000000815":    {"INVALID", "", ""},
		"4111110000000823":    {"ERROR", "", ""},
		"4242424242424242":    {"VALID", "V", "424242XXXXXX4242"},
		"5555555555554444":    {"VALID", "M", "555555XXXXXX4444"},
		"378282246310005":     {"VALID", "A", "378282XXXXX0005"},
		"6011111111111117":    {"VALID", "D", "601111XXXXXX1117"},
		"36227206271667":      {"VALID", "D", "362272XXXX1667"},
		"3530111333300000":    {"VALID", "J", "353011XXXXXX0000"},
		"6200000000000005":    {"VALID", "P", "620000XXXXXX0005"},
		"6304000000000000":    {"VALID", "O", "630400XXXXXX0000"},
		"2200000000000004":    {"INVALID", "", ""}, // Mir
		"4111141011111111116": {"VALID", "V", "411114XXXXXXXXX1116"},
	} {
		k := p.Import(t, pan)
		got := p.obtainPPAN(t, k.ID(), simnet.PortalKey)
		if got["status"] != want.status {
			t.Errorf("%s: %v", pan, got)
			continue
		}
		if want.status != "VALID" {
			if got["errorcode"] == nil || got["errormessage"] == nil || got["customermessage"] == nil || len(got) != 4 {
				t.Errorf("%s: %v", pan, got)
			}
			continue
		}
		pseudo, _ := got["pseudocardpan"].(string)
		if got["cardtype"] != want.cardType || got["truncatedcardpan"] != want.truncated || got["cardexpiredate"] != "3012" ||
			len(pseudo) < 16 || len(pseudo) > 19 || len(got) != 5 {
			t.Errorf("%s: %v", pan, got)
		}
		if again := p.obtainPPAN(t, k.ID(), simnet.PortalKey); again["pseudocardpan"] != pseudo {
			t.Errorf("%s: another pseudo card number", pan)
		}
		if wrong := p.obtainPPAN(t, k.ID(), simnet.PortalKey+"x"); wrong["status"] != "ERROR" {
			t.Errorf("%s, wrong hash: %v", pan, wrong)
		}
	}
}
