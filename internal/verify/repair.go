package verify

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Stage is a part of a repair.
type Stage uint8

// The stages, in their order. If the first finds nothing in the indexes, there are no others.
const (
	Looking Stage = iota // as Run does
	Mending              // the indexes are made anew
	Again                // at the indexes alone
	Repaired
)

// A repair can go on from a RepairPlace until PlaceLasts after it was marked. What lies before it
// is not looked at once more, and may have been damaged since.
const PlaceLasts = 24 * time.Hour

// A RepairPlace marks the progress of a repair.
type RepairPlace struct {
	Vault uuid.UUID
	Stage Stage
	Found bool   // damage of an index, when Looking
	At    *Place // when looking; its Records are counted in this call
	mend  []byte // of store.Repairer, when Mending
}

const (
	repairFormat = 3
	repairHead   = 3 + 16 + 8 // format, stage, Found, Vault, and when the place was marked
)

// String returns the place as text for [ParseRepairPlace], "" once all is done.
func (p *RepairPlace) String() string {
	if p.Stage == Repaired {
		return ""
	}
	b := append([]byte{repairFormat, byte(p.Stage), 0}, p.Vault[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(time.Now().Unix()))
	if p.Found {
		b[2] = 1
	}
	if p.Stage == Mending {
		return base64.RawURLEncoding.EncodeToString(append(b, p.mend...))
	}
	return base64.RawURLEncoding.EncodeToString(b) + "." + p.At.String()
}

// ParseRepairPlace reads the text of a place in a vault. "" is the beginning.
func ParseRepairPlace(text string, vault uuid.UUID) (*RepairPlace, error) {
	p := &RepairPlace{Vault: vault}
	if text == "" {
		return p, nil
	}

	head, at, _ := strings.Cut(text, ".")
	b, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil || len(b) < repairHead || len(b) > maxPlace || b[0] != repairFormat || b[1] >= byte(Repaired) || b[2] > 1 {
		return nil, ErrPlace
	}
	age := time.Since(time.Unix(int64(binary.BigEndian.Uint64(b[repairHead-8:])), 0))
	if !bytes.Equal(b[3:][:16], vault[:]) || age > PlaceLasts || age < -PlaceLasts { // the clock may have stepped back
		return nil, ErrPlace
	}

	p.Stage, p.Found = Stage(b[1]), b[2] == 1
	if p.Stage == Mending {
		p.At = new(Place)
		if p.mend = b[repairHead:]; len(p.mend) == 0 {
			p.mend = nil
		}
		if at != "" {
			return nil, ErrPlace
		}
		return p, nil
	}
	if p.At, err = ParsePlace(at); p.At == nil || len(b) > repairHead || p.Stage == Again && p.At.Kind != 0 {
		return nil, ErrPlace
	}
	return p, err
}

// ErrUnable is returned for a store that is not a store.Repairer.
var ErrUnable = errors.New("verify: the store does not repair its indexes")

// Repair looks through the vault as Run does. If it finds damage of an index, it makes all
// indexes anew, and looks at them once more. It goes on from a place, and moves that.
func (c *Config) Repair(ctx context.Context, p *RepairPlace, o Options, progress func(*RepairPlace)) (err error) {
	found := o.Found
	o.Found = func(f Finding) {
		p.Found = p.Found || p.Stage == Looking && f.Index != ""
		found(f)
	}
	o.Progress = func(at *Place) {
		p.At = at
		progress(p)
	}
	if p.Stage == Looking {
		if o.From = p.At; p.At == nil {
			p.At = new(Place) // nothing was looked at
		}
		if err := c.run(ctx, p, o); err != nil {
			return err
		}
		if !p.Found {
			p.Stage = Repaired
			return nil
		}
		p.Stage = Mending
	}

	if p.Stage == Mending {
		if err := c.mend(ctx, p, o.Rate, progress); err != nil {
			return err
		}
		p.Stage, p.At = Again, new(Place)
	}
	o.From = p.At
	if err := c.run(ctx, p, o); err != nil {
		return err
	}
	p.Stage = Repaired
	return nil
}

func (c *Config) run(ctx context.Context, p *RepairPlace, o Options) (err error) {
	p.At, err = c.Run(ctx, o)
	return err
}

func (c *Config) mend(ctx context.Context, p *RepairPlace, rate int, progress func(*RepairPlace)) error {
	for {
		began := time.Now()
		next, able, err := c.Ledger.Repair(ctx, p.mend, pageMend)
		switch {
		case errors.Is(err, store.ErrInvalid):
			return ErrPlace
		case err != nil:
			return err
		case !able:
			return ErrUnable
		}
		if p.mend = next; next == nil {
			return nil
		}
		progress(p)
		if err := rest(ctx, began, pageMend, rate); err != nil {
			return fmt.Errorf("the indexes are being made anew: %w", err)
		}
	}
}
