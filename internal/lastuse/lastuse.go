// Package lastuse notes when keys were last used, to the hour.
//
// A use costs no write: it is kept in memory, and the keys of a minute are written together,
// at most once an hour each. A process that is killed forgets the last minute.
package lastuse

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	// Precision is the length of time in which further uses of a key are not written.
	Precision = time.Hour

	pause    = time.Minute      // between a use and its write
	patience = 45 * time.Second // that the writes of one pause may take
	farewell = 2 * time.Second  // likewise, when the vault is closed
	batch    = 100              // keys that are written in one transaction
	most     = 1 << 15          // keys that are kept in memory; a use of any more is not noted
)

// A Config says what Times work with. All fields are needed.
type Config struct {
	Ledger *ledger.Ledger
	Log    *slog.Logger
	Keys   store.Kind
	Uses   store.Kind // of the records, which have the ids of their keys
}

// Times are the times at which the keys of a vault were last used. All methods may be called
// concurrently.
type Times struct {
	config Config
	told   ledger.Seldom
	turn   sync.Mutex // held while uses are written

	mu      sync.Mutex
	used    map[uuid.UUID]use // mu; by the row keys of keys
	timer   *time.Timer       // mu; nil unless a write is planned
	stopped bool              // mu
}

// A use of a key is written once. It is kept for its hour, so that it is not written again.
type use struct {
	account uuid.UUID
	hour    int64 // since 1970
	written bool
}

const secondsAnHour = int64(Precision / time.Second)

func hourOf(at time.Time) int64 { return at.Unix() / secondsAnHour }

// New returns Times without a use.
func New(c Config) *Times { return &Times{config: c, used: map[uuid.UUID]use{}} }

// Note notes that a key is used. It neither reads nor writes.
func (t *Times) Note(account, key uuid.UUID, at time.Time) {
	hour := hourOf(at)
	t.mu.Lock()
	defer t.mu.Unlock()
	last, known := t.used[key]
	if known && last.hour >= hour || !known && len(t.used) >= most {
		return
	}
	t.used[key] = use{account: account, hour: hour}
	t.plan()
}

// plan plans a write, unless there is a plan. The caller holds t.mu.
func (t *Times) plan() {
	if t.timer == nil && !t.stopped {
		t.timer = time.AfterFunc(pause, func() { t.flushWithin(patience) })
	}
}

func (t *Times) flushWithin(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	err := t.Flush(store.Patient(ctx))
	if err != nil && !errors.Is(err, ledger.ErrClosed) && t.told.Now() {
		t.config.Log.Warn("the last use of API keys could not be stored and will be retried", "error", err)
	}
}

// Close writes the uses that were noted, and plans no more writes. It waits for seconds at most.
func (t *Times) Close() {
	t.mu.Lock()
	t.stopped = true
	t.mu.Unlock()
	t.flushWithin(farewell)
}

// Flush writes the uses that have been noted.
func (t *Times) Flush(ctx context.Context) error {
	t.turn.Lock()
	defer t.turn.Unlock()

	var first error
	for account, used := range t.pending() {
		for rows := range slices.Chunk(slices.Collect(maps.Keys(used)), batch) {
			err := t.write(ctx, account, rows, used)
			switch {
			case err == nil:
				t.wrote(rows, used)
			case !errors.Is(err, store.ErrConflict): // another process may have written a former hour
				first = errors.Join(first, err)
			}
			if err != nil {
				break // the account, and no other one, waits
			}
		}
		if ctx.Err() != nil || errors.Is(first, ledger.ErrClosed) {
			break
		}
	}
	return first
}

// pending returns the hours of uses that are not written, by account and key. Uses of former
// hours that are written are forgotten, and all that are written once they are many.
func (t *Times) pending() map[uuid.UUID]map[uuid.UUID]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}

	many := len(t.used) > most/2
	this := hourOf(time.Now())
	of := map[uuid.UUID]map[uuid.UUID]int64{}
	for key, u := range t.used {
		switch {
		case u.written && (many || u.hour < this):
			delete(t.used, key)
		case !u.written:
			if of[u.account] == nil {
				of[u.account] = map[uuid.UUID]int64{}
			}
			of[u.account][key] = u.hour
		}
	}
	if len(of) > 0 {
		t.plan() // in case a write fails
	}
	return of
}

// wrote notes that uses are written, unless there were later ones.
func (t *Times) wrote(rows []uuid.UUID, hours map[uuid.UUID]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, row := range rows {
		if u := t.used[row]; u.hour == hours[row] {
			u.written = true
			t.used[row] = u
		}
	}
}

// write writes the uses of some keys of an account, except keys that were deleted and keys
// for which another process has written the hour. The error is store.ErrConflict if another
// process writes at the same time.
func (t *Times) write(ctx context.Context, account uuid.UUID, rows []uuid.UUID, hours map[uuid.UUID]int64) error {
	a := t.config.Ledger.In(account)
	former := map[uuid.UUID]*store.Record{}
	err := a.View(ctx, func(tx store.ReadTx) error {
		clear(former)
		for _, row := range rows {
			if _, err := a.Find(tx, t.config.Keys, row); isGone(err) {
				continue
			} else if err != nil {
				return err
			}
			r, err := tx.Get(t.config.Uses, row)
			switch {
			case errors.Is(err, store.ErrNotFound):
				former[row] = &store.Record{Kind: t.config.Uses, ID: row, Account: account}
			case err == nil:
				former[row] = r
			case !ledger.Unreadable(err):
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}

	var later []*store.Record
	for row, r := range former {
		if r.Version > 0 {
			hour, err := t.hour(ctx, r)
			switch {
			case errors.Is(err, ledger.ErrDamaged): // it is made whole
			case err != nil:
				return err
			case hour >= hours[row] && hour <= hourOf(time.Now())+1: // a later one comes from a wrong clock
				continue
			}
		}
		r.Version++
		if err := a.SealShown(r, tlv.Pad(tlv.AppendUint(nil, tagHour, uint64(hours[row])), 16, 0)); err != nil {
			return err
		}
		later = append(later, r)
	}
	return t.put(ctx, a, later)
}

// put writes records whose keys are there.
func (t *Times) put(ctx context.Context, a ledger.Account, records []*store.Record) error {
	if len(records) == 0 {
		return nil
	}
	return a.Update(ctx, ledger.Step, func(tx store.Tx) error {
		for _, r := range records {
			switch _, err := a.Find(tx, t.config.Keys, r.ID); {
			case err == nil:
				tx.Put(r)
			case !isGone(err):
				return err
			}
		}
		return nil
	})
}

// isGone reports whether a key was not found, in a transaction or in its account.
func isGone(err error) bool {
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, ledger.ErrNotFound)
}

const tagHour = 1

func (t *Times) hour(ctx context.Context, r *store.Record) (hour int64, err error) {
	err = t.config.Ledger.ReadFields(ctx, r, func(f *tlv.Fields) { tlv.Uint(f, tagHour, &hour) })
	return hour, err
}

// Read adds to read the records of uses of the keys in a list, by their row keys.
func (t *Times) Read(tx store.ReadTx, list *store.List, read map[uuid.UUID]*store.Record) error {
	for _, key := range list.Records {
		r, err := tx.Get(t.config.Uses, key.ID)
		switch {
		case ledger.Unreadable(err):
			read[key.ID] = &store.Record{Kind: t.config.Uses, ID: key.ID, Account: key.Account} // damaged when it is opened
		case err == nil:
			read[key.ID] = r
		case !errors.Is(err, store.ErrNotFound):
			return err
		}
	}
	return nil
}

// Open returns the hour in a record that Read has found, which may be nil: then it is zero.
func (t *Times) Open(ctx context.Context, r *store.Record) (time.Time, error) {
	if r == nil {
		return time.Time{}, nil
	}
	hour, err := t.hour(ctx, r)
	if err != nil {
		return time.Time{}, err
	}
	return time.Unix(hour*secondsAnHour, 0).UTC(), nil
}
