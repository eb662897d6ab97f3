package ledger

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cardvault/cardvault/internal/layers"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/sums"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Bounds of a record of KindSumChange. It takes no more places than these.
const (
	mostPlaces   = 256
	mostVersions = 1 << 20 // far from the seals that one key may make
)

// summing keeps the sums of the records, once they were begun. It is the store.Sums of a ledger.
//
// In each transaction it adds the changes to a record of KindSumChange of this process, by account
// and kind. Such records are added up, so a process that does not know what a transaction has
// written, or has no room in its record, begins another one. FoldSums adds the records that
// nothing writes any more to the records of KindSum.
type summing struct {
	ledger  *Ledger
	full    chan struct{} // holds a token when a record was left behind
	folding chan struct{} // holds a token while sums are folded, or compared
	walking chan struct{} // holds a token while sums are compared

	mu      sync.Mutex // guards the fields below
	stop    func()     // of store.Summer
	keys    *seal.SumKeys
	changes sums.Set   // of the transaction
	wrote   bool       // the transaction has a record of them
	present *sumChange // the record of this process; nil: the next has another

	altered uint64 // how often this process has written records of KindSum

	least time.Time             // of the record of no account, as last read
	left  map[uuid.UUID]bool    // records of this process that it writes no more
	idle  map[uuid.UUID]resting // of other processes, by the last look
	log   *sumLog               // of a comparison that goes on; nil: none

	failing Seldom
}

// A sumChange is a record of KindSumChange as the last transaction has left it.
type sumChange struct {
	id      uuid.UUID
	version uint64
	row     *seal.SumRow
	made    time.Time
	set     sums.Set
}

// A resting record has had a version since a time.
type resting struct {
	version uint64
	since   time.Time
}

func (s *summing) begin(l *Ledger) {
	s.ledger, s.left, s.idle = l, map[uuid.UUID]bool{}, map[uuid.UUID]resting{}
	s.full, s.folding, s.walking = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
}

func (s *summing) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// summer returns the store, if it shows its changes.
func (l *Ledger) summer() (store.Summer, bool) { return layers.As[store.Summer](l.store.Store) }

// openSums has the store show its changes from now on, if it can.
func (l *Ledger) openSums(ctx context.Context) error {
	if _, able := l.summer(); !able {
		return nil
	}
	if l.Box.Keys().Summed() {
		if err := l.viewUnbarred(ctx, func(tx store.ReadTx) error {
			_, err := l.sums.top(tx)
			return err
		}); err != nil {
			return err
		}
	}
	l.sums.open()
	return nil
}

// open has the store, which can do that, show its changes.
func (s *summing) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if summer, able := s.ledger.summer(); able && s.stop == nil {
		s.stop = summer.Sum(s)
	}
}

// keepSums ends the sums of a vault on a store that does not show its changes: no process can keep
// them there.
func (l *Ledger) keepSums(ctx context.Context) error {
	if _, able := l.summer(); able || !l.Box.Keys().Summed() || l.config.Moving {
		return nil
	}
	l.config.Log.Warn("the store does not show its changes: the sums of the vault end")
	return l.alter(ctx, &alteration{
		op: OpBeginSums,
		next: func(k *seal.Keys, _ *meta) (*seal.Keys, error) {
			if !k.Summed() {
				return nil, nil
			}
			return k.WithoutSums(), nil
		},
		also: func(store.Tx, *seal.Keys, *seal.Keys) error { return nil },
	})
}

// Begin implements store.Sums.
func (s *summing) Begin() bool {
	if !s.ledger.Box.Keys().Summed() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys = s.ledger.Box.Keys().SumKeys()
	}
	if s.wrote { // and is perhaps not written
		s.leave()
	}
	s.changes, s.wrote = sums.Set{}, false
	s.log.begin()
	return true
}

// leave has the next transaction begin another record. The caller holds the lock.
func (s *summing) leave() {
	if s.present == nil {
		return
	}
	s.left[s.present.id], s.present = true, nil
	select {
	case s.full <- struct{}{}:
	default:
	}
}

// OfSums reports whether records of a kind are sums. They are sealed under keys that no rotation
// changes.
func OfSums(kind store.Kind) bool { return kind == KindSum || kind == KindSumChange }

// placeOf returns where a record is added up, and whether it is. The records of sums themselves are,
// except for the last: sums of these would be in them.
func placeOf(r *store.Record) (at sums.Place, is bool) {
	at = sums.Place{Account: r.Account, Kind: r.Kind}
	return at, r.Version != 0 && r.Kind != KindMeta && (!OfSums(r.Kind) || r.Kind == KindSum && r.ID != sumID(uuid.Nil))
}

// Change implements store.Sums. A record that could not be read when it was deleted is not
// subtracted: it was lost before, and is said to be.
func (s *summing) Change(former, next *store.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range []struct {
		r    *store.Record
		sign func(a, b sums.Sum) sums.Sum
	}{{former, sums.Sum.Minus}, {next, sums.Sum.Plus}} {
		if c.r == nil {
			continue
		}
		if at, is := placeOf(c.r); is {
			sum := c.sign(sums.Sum{}, sums.Of(s.keys.Element(c.r)))
			s.changes.Add(at, sum)
			s.log.add(positionOf(c.r), at, sum)
		}
	}
}

// Records implements store.Sums.
func (s *summing) Records(fresh bool) (records []*store.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fresh || s.present != nil && s.present.version >= mostVersions {
		s.leave()
	}
	if len(s.changes) == 0 {
		s.log.forget()
		return nil
	}

	changed := false // the present record
	for at, sum := range s.changes {
		if p := s.present; p != nil && len(p.set) >= mostPlaces {
			if _, has := p.set[at]; !has {
				if changed {
					records = append(records, p.next())
				}
				s.leave()
			}
		}
		if s.present == nil {
			s.present = s.newChange()
		}
		s.present.set.Add(at, sum)
		changed = true
	}
	s.wrote = true
	records = append(records, s.present.next())
	last := records[len(records)-1]
	s.log.end(last.ID, last.Version)
	return records
}

// newChange returns a new record. It is not older than what may be a former one, whatever the clock
// says.
func (s *summing) newChange() *sumChange {
	id, made := newID(), Now()
	if made.Before(s.least) {
		made = s.least
	}
	return &sumChange{id: id, row: s.keys.SumRow(KindSumChange, id), made: made, set: sums.Set{}}
}

func newID() (id uuid.UUID) {
	rand.Read(id[:])
	return id
}

// leftOf returns new records with the sums of some places, which this process writes no more.
func (s *summing) leftOf(of sums.Set, places []sums.Place) (records []*store.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for part := range slices.Chunk(places, restPlaces) {
		c := s.newChange()
		for _, at := range part {
			c.set[at] = of[at]
		}
		s.left[c.id] = true
		records = append(records, c.next())
	}
	return records
}

// next returns the next version of the record.
func (c *sumChange) next() *store.Record {
	c.version++
	plain := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(c.set)*sums.EntrySize), uint64(c.made.UnixMicro()))
	return &store.Record{Kind: KindSumChange, ID: c.id, Version: c.version, Shown: c.row.Seal(c.version, c.set.Append(plain))}
}

// Committed implements store.Sums.
func (s *summing) Committed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrote = false
}

// sumID returns the id of the record of KindSum of an account.
func sumID(account uuid.UUID) uuid.UUID {
	if account == uuid.Nil {
		return uuid.Max
	}
	return account
}

// A sumRecord is a record of KindSum. The record of no account is written with each other one, so
// that these transactions come one after the other.
type sumRecord struct {
	account uuid.UUID
	version uint64 // 0: there is no record
	unread  bool   // it cannot be read, and is replaced
	set     sums.Set
	sumTop  // of the record of no account
}

// A sumTop is what only the record of no account has.
type sumTop struct {
	// beginning is random: the last call that begins sums has written it. What another call has
	// found out is void then.
	beginning uuid.UUID

	count uint64    // how often any record of KindSum was written. It never falls, and the anchor has it
	least time.Time // a record of KindSumChange that was made before was folded, and put back
}

const sumTopSize = 16 + 8 + 8

func (t *sumTop) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, t.beginning[:]...), t.count)
	return binary.BigEndian.AppendUint64(b, uint64(t.least.UnixMicro()))
}

func (t *sumTop) parse(b []byte) {
	t.beginning, t.count = uuid.UUID(b[:16]), binary.BigEndian.Uint64(b[16:])
	t.least = time.UnixMicro(int64(binary.BigEndian.Uint64(b[24:]))).UTC()
}

// openSum returns a record of KindSum that was read.
func (s *summing) openSum(r *store.Record) *sumRecord {
	is := &sumRecord{account: r.ID, version: r.Version, unread: true, set: sums.Set{}}
	head := 0
	if r.ID == sumID(uuid.Nil) {
		is.account, head = uuid.Nil, sumTopSize
	}
	plain, err := s.keys.SumRow(KindSum, r.ID).Open(r.Version, r.Shown)
	if err != nil || len(plain) < head {
		return is
	}
	set, err := sums.Parse(plain[head:])
	if err != nil {
		return is
	}
	if is.unread, is.set = false, set; head > 0 {
		is.parse(plain)
	}
	return is
}

// top returns the record of no account, nil if it is absent.
func (s *summing) top(tx store.ReadTx) (*sumRecord, error) {
	r, err := getOr(tx, KindSum, sumID(uuid.Nil))
	if r == nil || err != nil {
		return nil, err
	}
	s.useKeys()
	is := s.openSum(r)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.know(is)
	return is, nil
}

// put writes the next version. The record of no account is always there, and others while they have sums.
func (r *sumRecord) put(tx store.Tx, next *store.Record) {
	if r.unread || next == nil {
		tx.Delete(KindSum, sumID(r.account))
	}
	if next != nil {
		tx.Put(next)
	}
}

// next returns the next version, nil for none.
func (s *summing) nextSum(r *sumRecord) *store.Record {
	id, version := sumID(r.account), r.version+1
	if len(r.set) == 0 && r.account != uuid.Nil {
		return nil
	}
	if r.unread {
		version = 1
	}
	var plain []byte
	if r.account == uuid.Nil {
		plain = r.sumTop.append(nil)
	}
	plain = r.set.Append(plain)
	return &store.Record{Kind: KindSum, ID: id, Version: version, Shown: s.keys.SumRow(KindSum, id).Seal(version, plain)}
}

// openChange returns when a record of KindSumChange was made, and its sums.
func (s *summing) openChange(r *store.Record) (made time.Time, _ sums.Set, err error) {
	plain, err := s.keys.SumRow(KindSumChange, r.ID).Open(r.Version, r.Shown)
	if err == nil && len(plain) < 8 {
		err = sums.ErrMalformed
	}
	if err != nil {
		return made, nil, err
	}
	set, err := sums.Parse(plain[8:])
	return time.UnixMicro(int64(binary.BigEndian.Uint64(plain))).UTC(), set, err
}

// folded reports whether a record of KindSumChange that was made then has been folded, and was put
// back.
func (s *summing) folded(made time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return made.Before(s.least)
}

// useKeys makes the keys before a call reads sums, which another process may have begun.
func (s *summing) useKeys() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys = s.ledger.Box.Keys().SumKeys()
	}
}

// opSums is the operation of writes of sums.
var opSums = Adds("vault.sums")

// errSumsChanged is returned when sums have changed since they were read.
var errSumsChanged = fmt.Errorf("%w: sums have changed meanwhile", store.ErrConflict)

// errSumsPutBack is returned when sums were written less often than the last point says.
var errSumsPutBack = fmt.Errorf("%w: sums are as they were before", ErrRolledBack)

// A sumAlteration changes records of sums in one transaction.
type sumAlteration struct {
	add  sums.Set        // to the records of KindSum
	gone []*store.Record // are deleted: they are added, or cannot be read
	left []*store.Record // of KindSumChange, are new
	anew []uuid.UUID     // accounts whose records of KindSum could not be read

	least time.Time // of the record of no account, unless that has a later one

	// next, if set, is the beginning of the record of no account from then on. The present one must
	// be was then, if that is set.
	was, next uuid.UUID
}

// accounts returns the sums that the alteration adds, by account.
func (a *sumAlteration) accounts() map[uuid.UUID]sums.Set {
	accounts := map[uuid.UUID]sums.Set{uuid.Nil: {}}
	for _, account := range a.anew {
		accounts[account] = sums.Set{}
	}
	for at, sum := range a.add {
		if accounts[at.Account] == nil {
			accounts[at.Account] = sums.Set{}
		}
		accounts[at.Account].Add(at, sum)
	}
	return accounts
}

// alterSums makes an alteration. It returns store.ErrConflict if another process was faster.
func (l *Ledger) alterSums(ctx context.Context, a *sumAlteration) error {
	read, anchored, err := l.readSums(ctx, slices.Collect(maps.Keys(a.accounts())))
	if err != nil {
		return err
	}
	records, left, err := l.sums.after(a, read, anchored)
	if err != nil {
		return err
	}
	puts := map[uuid.UUID]*store.Record{}
	for account, is := range records {
		puts[account] = l.sums.nextSum(is)
	}

	err = l.In(uuid.Nil).Update(store.Patient(ctx), opSums, func(tx store.Tx) error {
		for _, r := range a.gone {
			if r.Version != 0 {
				if same, err := Same(tx, r); !same || err != nil {
					return cmp.Or(err, a.changed())
				}
			}
			tx.Delete(r.Kind, r.ID)
		}
		for _, r := range left {
			tx.Put(r)
		}
		for account, is := range records {
			r, err := getOr(tx, KindSum, sumID(account))
			switch {
			case err != nil:
				return err
			case r == nil && is.version != 0, r != nil && r.Version != is.version && !(is.unread && r.Version == 0):
				return errSumsChanged
			}
			if r != nil || puts[account] != nil {
				is.put(tx, puts[account])
			}
		}
		return nil
	})
	if err == nil {
		l.sums.wroteSums(records[uuid.Nil])
	}
	return err
}

// changed returns the error for a record that has changed since it was read. What a beginning has
// found out is void then.
func (a *sumAlteration) changed() error {
	if a.next != uuid.Nil {
		return ErrSumsBusy
	}
	return errSumsChanged
}

// wroteSums is called when an alteration was written.
func (s *summing) wroteSums(top *sumRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if top != nil {
		s.altered++
		s.know(top)
	}
}

// know takes what the record of no account has. The caller holds the lock.
func (s *summing) know(top *sumRecord) {
	if top.least.After(s.least) {
		s.least = top.least
	}
}

// readSums reads the records of KindSum of accounts, nil for absent ones, and how often sums were
// written before the last point of the anchor.
func (l *Ledger) readSums(ctx context.Context, accounts []uuid.UUID) (read map[uuid.UUID]*store.Record, anchored uint64, err error) {
	err = l.View(ctx, func(tx store.ReadTx) (err error) {
		read = make(map[uuid.UUID]*store.Record, len(accounts))
		if anchored, err = l.anchoredSums(tx); err != nil {
			return err
		}
		for _, account := range accounts {
			if read[account], err = getOr(tx, KindSum, sumID(account)); err != nil {
				return err
			}
		}
		return nil
	})
	return read, anchored, err
}

// after returns the records of KindSum after an alteration, and the new ones of KindSumChange.
func (s *summing) after(a *sumAlteration, read map[uuid.UUID]*store.Record, anchored uint64) (records map[uuid.UUID]*sumRecord, left []*store.Record, err error) {
	records, left = map[uuid.UUID]*sumRecord{}, slices.Clone(a.left)
	accounts := a.accounts()
	for account, r := range read {
		is := &sumRecord{account: account, set: sums.Set{}}
		if r != nil {
			is = s.openSum(r)
		}
		if is.unread && a.next == uuid.Nil { // until sums are begun anew
			left = append(left, s.leftOf(accounts[account], accounts[account].Places())...)
			continue
		}
		is.set.AddAll(accounts[account])
		records[account] = is
	}

	top := records[uuid.Nil]
	if top == nil {
		return records, left, nil
	}
	if a.next != uuid.Nil {
		if a.was != uuid.Nil && top.beginning != a.was {
			return nil, nil, errBegunAgain
		}
		top.beginning = a.next
		top.count = max(top.count, anchored) // it was perhaps lost, and is accepted as it is
	}
	if top.count < anchored { // it would come up with the anchor
		return nil, nil, errSumsPutBack
	}
	top.count++
	if a.least.After(top.least) {
		top.least = a.least
	}
	return records, left, nil
}

// getOr returns a record, nil for an absent one, and a record without a version if it cannot be read.
func getOr(tx store.ReadTx, kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r, err := tx.Get(kind, id)
	switch {
	case err == nil:
		return r, nil
	case Unreadable(err):
		return &store.Record{Kind: kind, ID: id}, nil
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	}
	return nil, err
}

// Bounds of FoldSums.
const (
	foldPage     = 32               // records that are looked at in one transaction
	foldRecords  = 1024             // that are folded together
	foldAccounts = 1000             // whose sums these have, about
	foldPart     = 200              // accounts whose sums change in one transaction
	restPlaces   = 1500             // of a record with the remaining sums: they fit into store.MaxRecord
	foldPause    = 10 * time.Second // from the first full record: of more records less is written in all
	foldPatience = time.Second      // with another one
	foldAfter    = 2 * time.Minute  // without a write, a record of another process is folded

	// A record comes into the store later than it is made, and clocks differ. After so long it is
	// taken for a former one.
	foldedSlack = time.Hour
)

// FollowSums folds sums until ctx ends.
func (l *Ledger) FollowSums(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(foldAfter / 4):
		case <-l.sums.full:
			select {
			case <-ctx.Done():
				return
			case <-time.After(foldPause):
			}
		}
		if err := l.FoldSums(ctx); err != nil {
			l.sumsFailed(ctx, err)
		}
	}
}

func (l *Ledger) sumsFailed(ctx context.Context, err error) {
	if ctx.Err() == nil && !gone(err) && l.sums.failing.Now() {
		l.config.Log.Error("sums of records cannot be kept up", "error", err)
	}
}

// FoldSums adds the records of KindSumChange that no process writes any more to the records of
// KindSum. It leaves records of other processes alone until they have had no change for a while. If
// such a process goes on after all, its next transaction finds no former record, and begins another.
func (l *Ledger) FoldSums(ctx context.Context) error {
	_, err := l.foldSums(ctx)
	return err
}

// foldSums also reports whether all are folded that rest. Another process may have been faster, or
// sums be compared.
func (l *Ledger) foldSums(ctx context.Context) (whole bool, err error) {
	if _, able := l.summer(); !able || !l.Box.Keys().Summed() {
		return true, nil
	}
	select {
	case l.sums.folding <- struct{}{}:
		defer l.sums.release()
	case <-time.After(foldPatience):
		return false, nil // after the comparison that goes on
	case <-ctx.Done():
		return false, ctx.Err()
	}

	l.sums.useKeys()
	var page []*store.Record
	read := func(after uuid.UUID) error {
		return l.View(ctx, func(tx store.ReadTx) (err error) {
			if _, err = l.sums.top(tx); err == nil {
				page, err = tx.Scan(KindSumChange, after, foldPage)
			}
			return err
		})
	}
	seen, f := map[uuid.UUID]bool{}, newFold(Now())
	for after := uuid.Nil; ; {
		if err := read(after); err != nil {
			return false, err
		}
		for _, r := range page {
			after = r.ID
			if f.look(&l.sums, r) {
				seen[r.ID] = true
			}
		}
		f.last = len(page) == 0
		if !f.last && len(f.ready) < foldRecords && len(f.accounts) < foldAccounts {
			continue
		}

		done, err := f.write(ctx, l)
		if err != nil {
			return false, err
		}
		if f.last {
			l.sums.forget(seen)
			return done && !f.missed, nil
		}
		next := newFold(f.oldest)
		next.missed = f.missed || !done
		f = next
	}
}

const (
	settleTries = 6 // of settleSums
	settleFolds = 2 // the second folds what the first has changed in the sums of accounts, and changes none
)

// settleSums folds what this process has committed, before a point of the anchor is written. It
// reports whether all of that is in the count of the point.
func (l *Ledger) settleSums(ctx context.Context) (settled bool) {
	if _, able := l.summer(); !able || !l.Box.Keys().Summed() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, anchorTime)
	defer cancel()
	folds := 0
	for range settleTries {
		l.sums.mu.Lock()
		present := l.sums.present != nil
		l.sums.leave()
		l.sums.mu.Unlock()
		if folds > 0 && !present {
			return true
		}

		// A transaction may be under way that has written the record. It has ended once another one has.
		err := l.In(uuid.Nil).Update(ctx, opSums, func(store.Tx) error { return nil })
		whole := false
		if err == nil {
			whole, err = l.foldSums(ctx)
		}
		if err != nil {
			l.sumsFailed(ctx, err)
			return false
		}
		if whole {
			folds++
		}
		if folds == settleFolds {
			return true
		}
	}
	return false
}

// A fold is records of KindSumChange that are folded together.
type fold struct {
	ready    []*store.Record // without their parts
	sums     sums.Set        // of them
	accounts map[uuid.UUID]bool

	// What no later record was made before: the beginning, or the first record that stays.
	oldest time.Time
	missed bool // a record that was ready stays after all
	last   bool // all records were looked at
}

func newFold(oldest time.Time) *fold {
	return &fold{sums: sums.Set{}, accounts: map[uuid.UUID]bool{}, oldest: oldest}
}

// look takes a record that nothing writes any more. It leaves a record that cannot be read, and a
// record that was folded before: Verify reports the first, and does not count the second. It reports
// false for these.
func (f *fold) look(s *summing, r *store.Record) bool {
	made, set, err := s.openChange(r)
	switch {
	case err != nil, s.folded(made):
		return false
	case !s.rests(r):
		if made.Before(f.oldest) {
			f.oldest = made
		}
		return true
	}
	f.sums.AddAll(set)
	for at := range set {
		f.accounts[at.Account] = true
	}
	f.ready = append(f.ready, &store.Record{Kind: r.Kind, ID: r.ID, Version: r.Version})
	return true
}

// write writes the sums of some accounts in each transaction, and new records of the other sums. If
// it ends early, or another process is faster, they are folded later.
func (f *fold) write(ctx context.Context, l *Ledger) (done bool, err error) {
	places := f.sums.Places()
	for len(f.ready) > 0 {
		part, accounts := sums.Set{}, map[uuid.UUID]bool{}
		for ; len(places) > 0; places = places[1:] {
			at := places[0]
			if accounts[at.Account] = true; len(accounts) > foldPart {
				break
			}
			part[at] = f.sums[at]
		}

		a := &sumAlteration{add: part, gone: f.ready, left: l.sums.leftOf(f.sums, places)}
		if f.last && !f.missed {
			a.least = f.oldest.Add(-foldedSlack)
		}
		switch err := l.alterSums(ctx, a); {
		case again(err):
			return false, nil
		case err != nil:
			return false, err
		}
		f.ready = a.left
	}
	return true, nil
}

// rests reports whether nothing writes a record any more.
func (s *summing) rests(r *store.Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.present != nil && s.present.id == r.ID, r.Version == 0:
		return false
	case s.left[r.ID]:
		return !s.log.has(r.ID)
	case s.log != nil:
		return false
	}
	is := s.idle[r.ID]
	if is.version != r.Version {
		s.idle[r.ID] = resting{r.Version, time.Now()}
		return false
	}
	return time.Since(is.since) >= foldAfter
}

// forget forgets the records that are not there any more.
func (s *summing) forget(there map[uuid.UUID]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	absent := func(id uuid.UUID) bool { return !there[id] }
	maps.DeleteFunc(s.idle, func(id uuid.UUID, _ resting) bool { return absent(id) })
	if s.log == nil {
		maps.DeleteFunc(s.left, func(id uuid.UUID, _ bool) bool { return absent(id) })
	}
}
