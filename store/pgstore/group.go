package pgstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/internal/queue"
)

// A call is one Update. It is owned by the writing goroutine.
type call struct {
	queue.Call
	fn     func(store.Tx) error
	ended  fate
	rounds int  // in this group
	direct bool // each read is made at once
	wide   bool // it does not name the accounts of its records: its group has no other call
	tx     updater
}

// A fate is the way in which a run of a call has ended.
type fate int

const (
	settled fate = iota // with its outcome, if the reads of the group still hold
	wanting             // for want of a row or answer that must be read first
	later               // it reads records that the group has written: the next group runs it
)

// A mode is the assumptions of a group.
type mode uint8

const (
	modeTrusting  mode = iota // remembered rows are current, and new ids are free
	modeCareful               // nothing: an attempt has failed
	modeExclusive             // nothing, and it has locked out all other groups
)

// A chance says how long a group still waits for a server that takes writes.
type chance uint8

const (
	firstChance chance = iota // from its first attempt on
	lastChance                // from an attempt on that took too long: perhaps only its connection was silent
)

// Bounds of a transaction. A group takes no further call once it has groupBytes or about
// groupLocks locks. One call has at most mostWrites and mostBytes.
const (
	groupBytes = 4 << 20
	mostWrites = 1 << 16
	mostBytes  = 64 << 20
)

// A group is the calls that share a transaction. They run one after the other, on the rows
// that the group knows and on the writes of the calls before. A read of an unknown row ends
// a run. All unknown rows of a round are read together, and these calls run again. So a
// group costs one round trip for its writes, and one more for each link of the longest
// chain of reads. A lone call reads at once. So does a call that asks for something else on
// each run, such as a call that looks at the clock.
//
// The known rows may be of different instants, or remembered from earlier groups. The
// transaction checks that all of them are current, under locks that last until the
// commit. If one is not, the group forgets all rows and runs its calls once more.
//
// A group is owned by the writing goroutine.
type group struct {
	session
	locks  locker
	memory *memory

	pending []*call
	calls   []*call // settled
	next    []*call // for the next group
	bytes   int     // of rows to be written

	known   map[key]*row     // as stored; nil: absent; of another account: that has the place
	relied  map[key]struct{} // which of known the settled calls have looked at
	looked  []key            // which of them the call has that runs
	answers map[string]*answer
	asked   []*question // that have an answer on which calls rely

	overlay map[key]*row         // as the calls leave it; nil: deleted
	hashes  map[hashKey]struct{} // lookups, lists and due times that were written
	lists   map[listKey]struct{}
	dues    map[store.Kind]struct{}
	parents map[uuid.UUID]struct{} // of rows that were written
	kinds   map[store.Kind]struct{}

	wantRows    map[key]struct{}
	wantAnswers map[string]*question
	ctx         context.Context // of this attempt
	failed      error           // of a read

	mode    mode
	attempt int // 0 for the first
	chance  chance
	began   time.Time // of the chance
}

func newGroup(s *server, locks locker, m *memory) *group {
	return &group{
		session: session{server: s}, locks: locks, memory: m,
		known: map[key]*row{}, relied: map[key]struct{}{}, answers: map[string]*answer{},
		overlay: map[key]*row{},
		hashes:  map[hashKey]struct{}{}, lists: map[listKey]struct{}{}, dues: map[store.Kind]struct{}{},
		parents: map[uuid.UUID]struct{}{}, kinds: map[store.Kind]struct{}{},
		wantRows: map[key]struct{}{}, wantAnswers: map[string]*question{},
	}
}

// begins prepares the first attempt. A store with partitions finds the record of a call
// that does not name the account by a look at each of them, and so sees whether an id is new.
func (g *group) begins() {
	g.wide = !g.divided()
	for _, c := range g.pending {
		if c.wide {
			g.wide, g.mode = true, modeCareful
		}
	}
}

// blind reports whether records may be in any partition.
func (g *group) blind() bool { return g.wide && g.divided() }

// keyOf returns the key by which the group knows a row.
func (g *group) keyOf(r *row) key { return g.keyAt(r.kind, r.account, r.id) }

func (g *group) keyAt(kind store.Kind, account, id uuid.UUID) key {
	if g.wide {
		account = uuid.Nil
	}
	return key{kind, id, account}
}

// reset makes an answered group a new one.
func (g *group) reset() {
	g.forget()
	g.next, g.mode, g.attempt, g.chance = nil, modeTrusting, 0, firstChance
}

// alone reports whether the group has one call that wants no other beside it.
func (g *group) alone() bool {
	wants := func(c *call) bool { return c.Alone }
	return slices.ContainsFunc(g.calls, wants) || slices.ContainsFunc(g.pending, wants)
}

// forget keeps only the calls.
func (g *group) forget() {
	g.asked, g.bytes, g.failed, g.ctx = nil, 0, nil, nil
	g.looked = g.looked[:0]
	clear(g.known)
	clear(g.relied)
	clear(g.answers)
	clear(g.overlay)
	clear(g.hashes)
	clear(g.lists)
	clear(g.dues)
	clear(g.parents)
	clear(g.kinds)
	clear(g.wantRows)
	clear(g.wantAnswers)
}

// again prepares another attempt.
func (g *group) again() {
	for k := range g.relied {
		g.memory.forget(k)
	}
	g.pending = append(g.calls, g.pending...)
	g.calls = nil
	for _, c := range g.pending {
		c.rounds = 0
	}
	g.forget()
	g.attempt++
	g.mode = max(g.mode, modeCareful)
}

// round runs the pending calls. A call that needs an unread row stays pending. A function
// that calls runtime.Goexit ends the goroutine here; another continues with the group.
func (g *group) round() {
	calls := len(g.pending)
	for range calls {
		c := g.pending[0]
		g.pending = g.pending[1:]
		switch {
		case g.failed != nil:
			g.pending = append(g.pending, c)
		case g.bytes >= groupBytes || g.crowded():
			g.next = append(g.next, c)
		default:
			c.rounds++
			c.direct = calls == 1 || c.rounds > fewRounds
			g.place(c, c.run(g))
		}
	}
}

const fewRounds = 4 // after which a call reads at once

// await ends the run of a call that wants something, or reads it.
func (g *group) await(c *call) {
	if c.direct && g.failed == nil {
		if g.failed = g.fetch(); g.failed == nil {
			return
		}
	}
	c.ended = wanting
	panic(unwind{})
}

func (g *group) place(c *call, f fate) {
	switch f {
	case settled:
		g.calls = append(g.calls, c)
		for _, k := range g.looked {
			g.relied[k] = struct{}{}
		}
	case wanting:
		g.pending = append(g.pending, c)
	case later:
		g.next = append(g.next, c)
	}
}

// run calls the function and applies its writes to the overlay.
func (c *call) run(g *group) fate {
	c.ended = settled
	g.looked = g.looked[:0]
	c.tx = updater{reader: reader{server: g.server, ask: func(q *question) (*answer, error) { return g.ask(c, q) }}, g: g, c: c}

	gone := true
	defer func() {
		if gone { // the function has ended the goroutine
			g.place(c, c.ended)
		}
	}()

	returned := c.Run(func() error {
		defer c.tx.end()
		return c.fn(c.tx.tx())
	})
	gone = false

	switch {
	case c.ended != settled: // unwind panicked, unless the function has replaced its panic
		return c.ended
	case !returned || c.Err != nil:
		return settled
	case c.tx.much:
		c.Err = fmt.Errorf("%w: an Update of more than %d writes or %d bytes", store.ErrInvalid, mostWrites, mostBytes)
		return settled
	}

	refused, known := g.apply(c.tx.ops)
	for !known && c.direct && g.failed == nil {
		if g.failed = g.fetch(); g.failed == nil {
			refused, known = g.apply(c.tx.ops)
		}
	}

	if !known {
		return wanting
	}
	c.Err = refused
	if refused == nil {
		g.bytes += c.tx.bytes
	}
	return settled
}

// An op is one write of a function: a row to put, nil if that breaks a rule, or a key
// to delete.
type op struct {
	key
	row     *row
	deletes bool
	of      *uuid.UUID // the account whose record is deleted; nil: any
	loads   bool       // whatever its version
}

// isNew reports whether the op puts a record that is not stored yet.
func (o *op) isNew() bool { return o.loads || o.row.version == 1 }

// An updater is a store.Tx.
type updater struct {
	reader
	g     *group
	c     *call
	ops   []op
	bytes int
	much  bool // more than one transaction takes
}

// A dividedUpdater is an updater of a store with partitions.
type dividedUpdater struct{ *updater }

// A partUpdater is an updater of the records of one account.
type partUpdater struct {
	*updater
	account uuid.UUID
}

var (
	_ store.Tx      = (*updater)(nil)
	_ store.Tx      = dividedUpdater{}
	_ store.Divided = dividedUpdater{}
	_ store.Tx      = partUpdater{}
	_ store.Loader  = (*updater)(nil)
	_ store.Loader  = dividedUpdater{}
	_ store.Loader  = partUpdater{}
)

// In implements [store.Divided].
func (u dividedUpdater) In(account uuid.UUID) store.ReadTx { return partUpdater{u.updater, account} }

// tx returns what a function of Update is given.
func (u *updater) tx() store.Tx {
	if u.server.divided() {
		return dividedUpdater{u}
	}
	return u
}

// widen makes the call run in a group in which a record may be of any account.
func (u *updater) widen() {
	u.mustLive()
	if !u.g.wide {
		u.c.Alone, u.c.wide, u.c.ended = true, true, later
		panic(unwind{})
	}
}

func (u *updater) Put(r *store.Record) {
	u.widen()
	u.put(r, false)
}

// Load implements [store.Loader].
func (u *updater) Load(r *store.Record) {
	u.widen()
	u.put(r, true)
}

func (u partUpdater) Put(r *store.Record) { u.put(r, false) }

// Load implements [store.Loader].
func (u partUpdater) Load(r *store.Record) { u.put(r, true) }

func (u partUpdater) put(r *store.Record, loads bool) {
	if r.Account != u.account {
		u.write(op{key: u.g.keyAt(r.Kind, u.account, r.ID)}) // which is invalid
		return
	}
	u.updater.put(r, loads)
}

func (u *updater) put(r *store.Record, loads bool) {
	w := rowOf(r)
	if w != nil {
		u.bytes += w.size()
	}
	u.write(op{key: u.g.keyAt(r.Kind, r.Account, r.ID), row: w, loads: loads})
}

func (u *updater) Delete(kind store.Kind, id uuid.UUID) {
	u.widen()
	u.write(op{key: u.g.keyAt(kind, uuid.Nil, id), deletes: true})
}

func (u partUpdater) Delete(kind store.Kind, id uuid.UUID) {
	u.write(op{key: u.g.keyAt(kind, u.account, id), deletes: true, of: &u.account})
}

func (u *updater) write(o op) {
	u.mustLive()
	if u.much = u.much || len(u.ops) == mostWrites || u.bytes > mostBytes; !u.much {
		u.ops = append(u.ops, o)
	}
}

// Get implements [store.ReadTx] without a question.
func (u *updater) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	u.widen()
	return u.get(u.g.keyAt(kind, uuid.Nil, id))
}

// Get returns records of the account alone, also in a group that knows rows by id.
func (u partUpdater) Get(kind store.Kind, id uuid.UUID) (*store.Record, error) {
	r := u.row(u.g.keyAt(kind, u.account, id))
	switch {
	case r == nil || r.account == u.account:
		return one(rowsOf(r), nil)
	case u.server.part(r.account) != u.server.part(u.account):
		return nil, store.ErrNotFound
	}
	return nil, &store.ForeignError{Account: r.account}
}

func (u *updater) get(k key) (*store.Record, error) { return one(rowsOf(u.row(k)), nil) }

// rowsOf returns a row as the answer to a question for it.
func rowsOf(r *row) []*row {
	if r == nil {
		return nil
	}
	return []*row{r}
}

// row returns the row at a key, nil if there is none.
func (u *updater) row(k key) *row {
	u.mustLive()
	r, known := u.g.state(k)
	if !known {
		u.g.wantRows[k] = struct{}{}
		u.g.await(u.c)
		r, _ = u.g.state(k)
	}
	return r
}

func (u partUpdater) Lookup(kind store.Kind, hash []byte, limit int) ([]*store.Record, error) {
	return partReader{&u.reader, u.account}.Lookup(kind, hash, limit)
}

func (u partUpdater) Children(parent uuid.UUID, limit int) ([]store.Key, error) {
	return partReader{&u.reader, u.account}.Children(parent, limit)
}

func (u *updater) Due(kind store.Kind, shards store.Shards, until time.Time, limit int) ([]*store.Record, error) {
	u.mustLive()
	if limit <= 0 {
		return nil, nil
	}
	if !u.c.Alone {
		u.c.Alone, u.c.ended = true, later // rows stay locked, so the group has no time to lose
		panic(unwind{})
	}
	return readyOf(u.rows(u.server.sql.ofDue(kind, shards, until, limit, true)))
}

// ask returns the answer to a question of a call, or ends its run.
func (g *group) ask(c *call, q *question) (*answer, error) {
	if g.touches(q) {
		c.ended = later
		panic(unwind{})
	}
	name := q.name()
	a, ok := g.answers[name]
	if !ok {
		g.wantAnswers[name] = q
		g.await(c)
		a = g.answers[name]
	}
	return a, nil
}

// touches reports whether the group has written rows that a question asks for.
func (g *group) touches(q *question) (yes bool) {
	switch {
	case q.lookup != nil:
		_, yes = g.hashes[*q.lookup]
	case q.list != nil:
		_, yes = g.lists[*q.list]
	case q.parent != uuid.Nil:
		_, yes = g.parents[q.parent]
	case q.scan != 0:
		_, yes = g.kinds[q.scan]
	case q.empty:
		yes = len(g.overlay) > 0
	default:
		_, yes = g.dues[q.due]
	}
	return yes
}

// state returns the row at a key for the next call, and whether it is known.
func (g *group) state(k key) (r *row, known bool) {
	r, ok := g.overlay[k]
	if ok {
		return r, true
	}
	if r, ok = g.known[k]; !ok && g.mode == modeTrusting {
		if r = g.memory.recall(k); r != nil {
			g.known[k], ok = r, true
		}
	}
	if ok {
		g.looked = append(g.looked, k)
	}
	if g.foreign(k, r) {
		if now, written := g.overlay[g.keyOf(r)]; written && now == nil {
			return nil, true // a call has given the place back
		}
	}
	return r, ok
}

// foreign reports whether a row that is known at a key names another account. Only a writer of
// rows brings that about.
func (g *group) foreign(k key, r *row) bool { return r != nil && !g.wide && r.account != k.account }

// A change is one write that apply can undo.
type change struct {
	key
	was *row
	had bool
}

// apply makes the writes of a function, all or none: what breaks a rule is refused. It
// reports false if it has to know more.
func (g *group) apply(ops []op) (refused error, known bool) {
	if g.wants(ops) {
		return nil, false
	}

	var undo []change
	known = true
	for _, o := range ops {
		if o.deletes {
			g.delete(o, &undo)
		} else {
			refused, known = g.put(o, &undo)
		}
		if refused != nil || !known {
			break
		}
	}

	if refused == nil && known {
		return nil, true
	}
	for i := len(undo) - 1; i >= 0; i-- {
		u := undo[i]
		g.set(u.key, u.was)
		if !u.had {
			delete(g.overlay, u.key)
		}
	}

	clear(g.hashes)
	clear(g.lists)
	clear(g.dues)
	clear(g.parents)
	clear(g.kinds)

	for k, r := range g.overlay {
		g.touch(g.known[k])
		g.touch(r)
	}
	return refused, known
}

// wants notes the rows that have to be known for all writes of a function.
func (g *group) wants(ops []op) (some bool) {
	for _, o := range ops {
		if !o.deletes && (o.row == nil || o.isNew() && g.mode == modeTrusting) {
			continue
		}
		if _, known := g.state(o.key); !known {
			g.wantRows[o.key] = struct{}{}
			some = true
		}
	}
	return some
}

func (g *group) put(o op, undo *[]change) (refused error, known bool) {
	if o.row == nil {
		return store.ErrInvalid, true
	}

	old, known := g.state(o.key)
	if !known {
		if !o.isNew() || g.mode != modeTrusting {
			g.wantRows[o.key] = struct{}{}
			return nil, false
		}
		g.known[o.key] = nil // most likely: ids are new
		g.looked = append(g.looked, o.key)
	}

	switch {
	case old != nil && old.damaged, g.foreign(o.key, old): // its version is not known, or not of this record
		return store.ErrDamaged, true
	case o.loads && (old != nil || o.row.version == 0):
		return store.ErrConflict, true
	case old == nil && !o.isNew(), old != nil && o.row.version != old.version+1:
		return store.ErrConflict, true
	case old != nil && (o.row.account != old.account || o.row.parent != old.parent):
		return store.ErrInvalid, true
	}

	g.change(o.key, o.row, undo)
	return nil, true
}

// delete removes a record, which wants has seen to be known.
func (g *group) delete(o op, undo *[]change) {
	if r, _ := g.state(o.key); r != nil && (o.of == nil || *o.of == r.account) {
		g.change(o.key, nil, undo)
	}
}

func (g *group) change(k key, r *row, undo *[]change) {
	was, had := g.overlay[k]
	if !had {
		was = g.known[k]
	}
	*undo = append(*undo, change{key: k, was: was, had: had})
	g.set(k, r)
}

// set replaces the row at a key, and notes the indexes that change.
func (g *group) set(k key, r *row) {
	was, had := g.overlay[k]
	if !had {
		was = g.known[k]
	}
	g.touch(was)
	g.touch(r)
	g.overlay[k] = r
}

// touch notes the indexes by which a row is found.
func (g *group) touch(r *row) {
	if r == nil {
		return
	}
	g.kinds[r.kind] = struct{}{}
	g.lists[g.list(r)] = struct{}{}
	if r.parent != uuid.Nil {
		g.parents[r.parent] = struct{}{}
	}
	if r.due.Valid {
		g.dues[r.kind] = struct{}{}
	}
	for _, hash := range r.hashes() {
		g.hashes[hashKey{r.kind, string(hash)}] = struct{}{}
	}
}

// learn takes rows as the stored ones. A row that calls may have read stays as it is, and
// so does the absence of one: the transaction checks them.
func (g *group) learn(rows []*row) {
	for _, r := range rows {
		if k := g.keyOf(r); g.unknown(k) {
			g.known[k] = r
		}
	}
}

func (g *group) unknown(k key) bool {
	_, known := g.known[k]
	return !known
}

// fetch reads the rows and answers that calls want.
func (g *group) fetch() error {
	keys := slices.Collect(maps.Keys(g.wantRows))
	questions := slices.Collect(maps.Values(g.wantAnswers))
	rows, answers, err := g.session.fetch(g.ctx, keys, questions)
	if err != nil {
		return err
	}

	g.learn(rows)
	g.occupy(keys, rows)

	for i, q := range questions {
		a := answers[i]
		g.answers[q.name()] = a
		if !q.claims {
			g.asked = append(g.asked, q)
		}
		if q.list == nil {
			for _, r := range a.rows {
				g.relied[g.keyOf(r)] = struct{}{}
			}
			g.learn(a.rows)
		}
		g.memory.notice(q, a)
	}

	clear(g.wantRows)
	clear(g.wantAnswers)
	return nil
}

// occupy notes for keys whose rows were not found that their places are free, or which row of
// another account in the same partition has the same kind and id.
func (g *group) occupy(keys []key, rows []*row) {
	var at map[key]*row // without accounts
	for _, k := range keys {
		if !g.unknown(k) {
			continue
		}
		if at == nil {
			at = make(map[key]*row, len(rows))
			for _, r := range rows {
				at[key{kind: r.kind, id: r.id}] = r
			}
		}

		r := at[key{kind: k.kind, id: k.id}]
		if r != nil && g.part(r.account) != g.part(k.account) {
			r = nil
		}
		g.known[k] = r
	}
}

// remember keeps the rows that the group has read, as it has left them.
func (g *group) remember() {
	for k := range g.relied {
		r, written := g.overlay[k]
		switch before := g.known[k]; {
		case !written && before != nil:
			g.memory.remember(before)
		case written && r != nil && before != nil:
			g.memory.remember(r)
		case written && before != nil:
			g.memory.forget(g.memory.keyOf(before))
		}
	}
}

// answer ends the calls of a group with their outcomes, or all with err: if a group fails,
// its reads may not hold either.
func (g *group) answer(err error) {
	for _, c := range slices.Concat(g.calls, g.pending) {
		if err != nil {
			c.Fail(err)
		} else {
			c.Answer()
		}
	}
	g.calls, g.pending = nil, nil
}

// crowded reports whether the group has about as many locks as it may.
func (g *group) crowded() bool {
	return len(g.calls) > 0 && len(g.relied)+len(g.hashes)+len(g.lists)+len(g.parents)+len(g.asked) >= groupLocks*3/4
}
