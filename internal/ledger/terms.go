package ledger

import (
	"context"
	"time"

	"github.com/cardvault/cardvault/store"
)

// Term returns the term under which records are sealed now.
func (l *Ledger) Term() uint32 {
	return l.Box.Keys().Masters.Active().Number
}

// Terms returns the number of terms that the vault has.
func (l *Ledger) Terms() int { return len(l.Box.Keys().Masters) }

// Reload loads the keys that another process has changed.
func (l *Ledger) Reload(ctx context.Context) error {
	return l.Named(&store.Record{Kind: KindMeta}, l.reload(ctx))
}

func (l *Ledger) reload(ctx context.Context) error {
	at := time.Now()
	_, err := l.loadMeta(ctx)
	if err == nil {
		l.store.followed.Store(&at)
		err = l.Moved()
	}
	return err
}

// Unread returns the error of a record of a kind that the store cannot read.
func (l *Ledger) Unread(kind store.Kind) error { return l.damage(kind, ErrDamaged) }

// Put writes the next version of a record that was read, whatever its account.
func Put(tx store.Tx, r *store.Record) {
	where(tx, r).(store.Tx).Put(r)
}
