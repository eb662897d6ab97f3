package simnet

import (
	"encoding/json"
	"testing"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/network"
)

// Stored attempts keep their format, in which owners are numbered from 0.
func TestStored(t *testing.T) {
	const stored = `{"token":{"scheme":1,"made":1,"first":{"last_four":"1111","expiry":{"Month":12,"Year":2030}},` +
		`"card":{"last_four":"1111","expiry":{"Month":12,"Year":2030}},"art":1,"expiry":{"Month":12,"Year":2030},` +
		`"state":3,"state_at":4,"suspended_by":7,"changes":3,"last":4,"outbox":[{"due":0,"n":1,"kind":3,"at":2},` +
		`{"due":1,"n":2,"kind":3,"by":1,"at":3},{"due":2,"n":3,"kind":3,"by":2,"at":4}]}}`
	owners := []network.Owner{network.OwnerIssuer, network.OwnerScheme, network.OwnerCardholder}
	made := newToken(card.VISA, 0, numbered{LastFour: "1111", Expiry: card.Expiry{Month: 12, Year: 2030}}, 1)
	for i, by := range owners {
		made.happen(network.NoticeSuspended, by, int64(i))
	}
	if text, err := json.Marshal(attempt{Token: made}); err != nil || string(text) != stored {
		t.Errorf("%s, %v", text, err)
	}

	var read attempt
	if err := json.Unmarshal([]byte(stored), &read); err != nil {
		t.Fatal(err)
	}
	for i, by := range owners {
		if got := read.Token.notice([16]byte{}, read.Token.Outbox[i]); got.By != by || got.Kind != network.NoticeSuspended {
			t.Errorf("notice %d is read as %v by %v", i, got.Kind, got.By)
		}
	}
	if got := read.Token.view([16]byte{}, read.Token.Card); got.SuspendedBy != network.OwnersOf(owners...) {
		t.Errorf("suspended by %v", got.SuspendedBy)
	}
}
