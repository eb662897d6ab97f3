package verify

import (
	"encoding/base64"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Place marks the progress of a verification: in the rows, in the indexes, and then in the sums.
type Place struct {
	Kind  store.Kind // of the rows; 0: they are done
	After uuid.UUID  // the last row that was looked at
	Index []byte     // of store.Checker
	Sums  bool       // the indexes are done too: the sums are next, as a whole

	Looked  int64 // records and entries, in this call
	Records int64 // likewise, records alone
	Unable  bool  // the store cannot check its indexes
	Summed  bool  // the sums were compared
	over    bool
}

// Done reports whether all was looked at.
func (p *Place) Done() bool { return p.over }

// Formats of a text. Format 2 is a place behind the indexes.
const (
	placeFormat  = 1
	placeFormat2 = 2
)

// String returns the place as text for [ParsePlace], "" if it is Done.
func (p *Place) String() string {
	if p.over {
		return ""
	}
	format := byte(placeFormat)
	if p.Sums {
		format = placeFormat2
	}
	b := append([]byte{format, byte(p.Kind)}, p.After[:]...)
	if p.Sums && p.Unable {
		b[2] = 1
	}
	return base64.RawURLEncoding.EncodeToString(append(b, p.Index...))
}

// maxPlace bounds a text: an index may need as many bytes as its longest key.
const maxPlace = 512

// ParsePlace reads the text of a place. It returns nil for "", which is the beginning.
func ParsePlace(text string) (*Place, error) {
	if text == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) < 18 || len(b) > maxPlace || b[0] != placeFormat && b[0] != placeFormat2 {
		return nil, ErrPlace
	}
	p := &Place{Kind: store.Kind(b[1]), After: uuid.UUID(b[2:18]), Sums: b[0] == placeFormat2}
	if len(b) > 18 {
		p.Index = b[18:]
	}
	if p.Kind != 0 && (p.Kind < ledger.KindMeta || p.Index != nil) || p.Sums && (p.Kind != 0 || p.Index != nil) {
		return nil, ErrPlace
	}
	if p.Sums {
		p.Unable, p.After = b[2] == 1, uuid.Nil
	}
	return p, nil
}
