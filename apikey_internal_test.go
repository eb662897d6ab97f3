package cardvault

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/tlv"
)

// goldenDigest is the digest in the golden rows of API keys.
var goldenDigest = strings.Repeat("d1", 32)

// TestGoldenAPIKeys: rows of API keys as they are stored, with and without what has been
// added since the first version.
func TestGoldenAPIKeys(t *testing.T) {
	end := time.UnixMicro(1_800_000_000_000_000).UTC()
	for name, test := range map[string]struct {
		row  string
		want APIKey
	}{
		"first version": {"0203" + hex.EncodeToString([]byte("old")) + "0302" + "0210" + "0420" + goldenDigest,
			APIKey{Label: "old", Scopes: []Scope{ScopeTokensRead, ScopeAPIKeysWrite}}},
		"with an end": {"0107" + "06651728988000" + "0203" + hex.EncodeToString([]byte("old")) + "0301" + "02" + "0420" + goldenDigest,
			APIKey{Label: "old", Scopes: []Scope{ScopeTokensRead}, ExpiresAt: end}},
		"with ranges": {"0203" + hex.EncodeToString([]byte("new")) + "0301" + "02" +
			"0505" + "c000020018" + "0511" + "20010db8000000000000000000000000" + "20" + "0620" + goldenDigest,
			APIKey{Label: "new", Scopes: []Scope{ScopeTokensRead}, AddressRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}}},
	} {
		row, err := hex.DecodeString(test.row)
		if err != nil {
			t.Fatal(err)
		}
		digest, _ := hex.DecodeString(goldenDigest)

		var got APIKey
		if err := got.decode(row); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if string(hiding.Of(got.digest)) != string(digest) {
			t.Errorf("%s: another digest", name)
		}
		test.want.digest = got.digest
		if encoded := strings.TrimRight(string(got.encode()), "\x00"); encoded != string(row) {
			t.Errorf("%s: encoded %x\nwant %x", name, encoded, row)
		}
		got.digest, test.want.digest = hidden{}, hidden{}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// TestFormerVersionRefusesRanges: a version that passes over ranges must not authenticate
// a key that has some. It finds no digest, and takes the row for damaged.
func TestFormerVersionRefusesRanges(t *testing.T) {
	former := func(row []byte) (digests int) {
		r := tlv.Read(row)
		for r.Next() {
			if r.Tag == keyDigest {
				digests++
			}
		}
		return digests
	}
	k := APIKey{Label: "k", Scopes: allScopes, digest: hiding.New(make([]byte, 32))}
	if former(k.encode()) != 1 {
		t.Error("a former version cannot read a key without ranges")
	}
	k.AddressRanges = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	if former(k.encode()) != 0 {
		t.Error("a former version authenticates a key with ranges, everywhere")
	}
}

// TestMixedAPIKeyRows: the tag of the digest and the ranges agree, whoever has written them.
func TestMixedAPIKeyRows(t *testing.T) {
	for name, row := range map[string]string{
		"ranges that a former version passes over": "0505" + "c000020018" + "0420" + goldenDigest,
		"no range":                 "0620" + goldenDigest,
		"a range of another size":  "0504" + "c0000218" + "0620" + goldenDigest,
		"a length of 33 bits":      "0505" + "c000020021" + "0620" + goldenDigest,
		"a digest of another size": "0201" + "6b" + "0402" + "d1d1",
	} {
		plain, err := hex.DecodeString(row)
		if err != nil {
			t.Fatal(err)
		}
		if err := new(APIKey).decode(plain); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
