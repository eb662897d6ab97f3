package spread_test

import (
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cardvault/cardvault/internal/spread"
	"github.com/cardvault/cardvault/network"
)

// TestGolden: stored spreads stay readable. They number owners from 0.
func TestGolden(t *testing.T) {
	for by, golden := range map[network.Owner]string{
		network.OwnerIssuer:     "01016e021000000000000000000000000000000000030174050103060101",
		network.OwnerScheme:     "01016e021000000000000000000000000000000000030174050103060101070101",
		network.OwnerCardholder: "01016e021000000000000000000000000000000000030174050103060101070102",
	} {
		s := &spread.Spread{Notice: network.Notice{
			Kind: network.NoticeSuspended, By: by, OccurredAt: time.UnixMicro(1).UTC(), Token: network.Ref{Network: "n", ID: "t"},
		}}
		if got := strings.TrimRight(hex.EncodeToString(s.Encode()), "0"); got != strings.TrimRight(golden, "0") {
			t.Errorf("%v: %s, want %s", by, got, golden)
		}
		stored, err := hex.DecodeString(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := spread.Decode(stored); err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%v: %+v, %v", by, got, err)
		}
	}

	s := &spread.Spread{Notice: network.Notice{Kind: network.NoticeActivated}}
	if got, err := spread.Decode(s.Encode()); err != nil || got.Notice.By != 0 {
		t.Errorf("a notice without an owner: %+v, %v", got, err)
	}
}
