package backup

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A Mover copies a vault into another store. Each copy writes only the blocks that differ, so a
// copy can be repeated until little has changed meanwhile, and goes on where an earlier one has
// ended.
type Mover struct {
	From     *ledger.Ledger // with Config.Moving
	To       store.Store
	Ring     ledger.Ring
	Progress func(Progress)

	last agreed // of the last Copy
}

// Occupy marks the new place, which must be empty or occupied by a move of the same vault. It
// does so before the vault is fenced: a move to a wrong place ends here.
func (m *Mover) Occupy(ctx context.Context) error {
	return m.restorer(nil).occupy(ctx)
}

func (m *Mover) restorer(r io.Reader) *restorer {
	return newRestorer(restorer{store: m.To, ring: m.Ring, moves: m.From.Box.Keys().Vault, progress: m.Progress}, r)
}

// Copy copies what differs. The new place is whole only if the vault is fenced.
func (m *Mover) Copy(ctx context.Context) (*Restored, error) {
	m.last = agreed{}
	r, w := io.Pipe()
	made := make(chan error, 1)
	go func() {
		_, err := Make(ctx, Config{Ledger: m.From, known: walkOf(m.To), found: &m.last}, w)
		w.CloseWithError(err)
		made <- err
	}()
	restored, err := m.restorer(r).run(ctx)
	r.CloseWithError(errLeft)
	if failed := <-made; failed != nil && !errors.Is(failed, errLeft) {
		return nil, failed
	}
	return restored, err
}

// errLeft ends Make when the restoration has ended first.
var errLeft = errors.New("cardvault: the new place takes no more")

// An agreed is what a copy has found in both places. A nil one takes nothing.
type agreed struct {
	records int64   // without those of the keyring
	written []block // as they were read; the other blocks were the same in both places
}

func (a *agreed) add(b *block, same bool) {
	if a == nil || b.kind == ledger.KindMeta {
		return
	}
	a.records += int64(b.records)
	if !same {
		a.written = append(a.written, *b)
	}
}

// Compare returns the number of records, and ErrDamaged unless both places have the same ones. The
// records of the keyring differ. The last copy was made behind a fence, so it has compared all
// blocks except the written ones.
func (m *Mover) Compare(ctx context.Context) (records int64, err error) {
	to := &scanner{view: m.To.View}
	for _, b := range m.last.written {
		sum, n, err := to.sum(ctx, b.span)
		if err != nil {
			return 0, ledger.Translate(err)
		}
		if sum != b.sum || n != b.records {
			return 0, fmt.Errorf("%w: records of kind %d differ in the two places", ledger.ErrDamaged, b.kind)
		}
	}
	return m.last.records, nil
}

// Here returns ErrMoved unless the new place has the vault.
func (m *Mover) Here(ctx context.Context) error {
	err := m.To.View(ctx, func(tx store.ReadTx) error {
		_, err := tx.Get(ledger.KindAccount, m.From.In(uuid.Nil).Unmask(ledger.KindAccount, m.From.First))
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w: into another place than this one", ledger.ErrMoved)
	}
	return ledger.Translate(err)
}

// Arrived returns the mark of the new place. It is nil if the vault was opened there already, or is
// not there.
func (m *Mover) Arrived(ctx context.Context) (mark *ledger.Restoration, err error) {
	err = m.To.View(ctx, func(tx store.ReadTx) (err error) {
		mark, err = ledger.RestorationOf(tx)
		return err
	})
	if err == nil && mark != nil && mark.Vault != m.From.Box.Keys().Vault {
		mark = nil
	}
	return mark, ledger.Translate(err)
}
