package backup

import (
	"bytes"
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// Errors of the place of a restoration.
var (
	ErrNotEmpty = errors.New("cardvault: the store is not empty")
	ErrNoLoader = errors.New("cardvault: no backup can be restored into the store: its Tx is no store.Loader")
)

// ErrChain is returned for backups that do not follow each other.
var ErrChain = errors.New("cardvault: the backups do not follow each other")

// A Restored describes a restored vault.
type Restored struct {
	ID     uuid.UUID // that thaws the vault
	Report           // of the last backup
	Bases  []Report  // of those before it
}

// Restore writes the records of a stream into an empty store, chunk by chunk, each once it is
// verified, and then the records of its increments, in their order. The keyring comes last, with a
// new term: before that the store has no vault. Restore goes on with a restoration of the same
// backups that has ended early. With deletes, the vault does not open before Delete has ended.
func Restore(ctx context.Context, s store.Store, ring ledger.Ring, streams []io.Reader, deletes bool, progress func(Progress)) (*Restored, error) {
	return newRestorer(restorer{store: s, ring: ring, deletes: deletes, progress: progress}, streams...).run(ctx)
}

func newRestorer(m restorer, streams ...io.Reader) *restorer {
	for i, r := range streams {
		what := "the backup"
		if len(streams) > 1 {
			what = fmt.Sprintf("backup %d of %d", i+1, len(streams))
		}
		m.links = append(m.links, &link{stream: &reader{r: r, what: what}})
	}
	return &m
}

func (m *restorer) run(ctx context.Context) (*Restored, error) {
	if err := m.occupy(ctx); err != nil { // first: a place whose restoration has failed must not open as a new vault
		return nil, err
	}
	if err := m.heads(ctx); err != nil {
		return nil, err
	}
	if err := m.agree(ctx); err != nil {
		return nil, err
	}

	for i := range m.links {
		if err := m.follow(ctx, i); err != nil {
			return nil, err
		}
		e, err := m.chunks(ctx)
		if err != nil {
			return nil, err
		}
		if i == len(m.links)-1 {
			err = m.end(ctx, e)
		}
		if err != nil {
			return nil, err
		}
	}
	return &m.report, nil
}

// A link is one backup of a chain.
type link struct {
	stream  *reader
	head    head
	keyring *store.Record // of its head
}

// A restorer restores a backup, or a chain of a full one and increments.
type restorer struct {
	store    store.Store
	ring     ledger.Ring
	links    []*link
	deletes  bool
	progress func(Progress)
	moves    uuid.UUID           // the vault that moves into the store; zero: none
	mark     *ledger.Restoration // as it is stored
	reached  int                 // the link that the mark names
	vault    uuid.UUID

	at      int           // the link that is read
	stream  *reader       // of this link
	keyring *store.Record // the latest in it
	passed  Progress      // of the links before
	report  Restored
}

// heads reads the heads of all links, before anything is written. The keys that authenticate them
// are in the last one, sealed: so the key-encryption key of its time is enough.
func (m *restorer) heads(ctx context.Context) error {
	var bodies, macs [][]byte
	var buf []byte
	for _, l := range m.links {
		l.stream.buf = buf
		body, mac, err := l.read()
		if err != nil {
			return err
		}
		bodies, macs, buf = append(bodies, bytes.Clone(body)), append(macs, bytes.Clone(mac)), l.stream.buf
	}

	last := m.links[len(m.links)-1]
	opened, err := ledger.OpenKeyring(ctx, m.ring, last.keyring)
	if err != nil {
		return fmt.Errorf("chunk 0 of %s: %w", last.stream.what, err)
	}
	m.vault = opened.Keys.Vault
	for i, l := range m.links {
		if l != last && l.head.vault != m.vault {
			return fmt.Errorf("%w: %s belongs to another vault than the last one", ErrChain, l.stream.what)
		}
		l.stream.sums = newSums(opened.Keys, l.head.backup)
		if !hmac.Equal(macs[i], l.stream.sums.next(bodies[i])) || l.head.vault != m.vault {
			return l.stream.damagedAt(0, "was changed")
		}
	}
	return m.chained()
}

// read reads the head, which is not verified yet.
func (l *link) read() (body, mac []byte, err error) {
	if err := l.stream.begins(magic); err != nil {
		return nil, nil, err
	}
	if body, mac, err = l.stream.unverified(); err != nil {
		return nil, nil, err
	}
	var f tlv.Fields
	f.From(bytes.Clone(body[1:]))
	l.head.fields(&f)
	switch {
	case body[0] != sortHead || f.Err() != nil:
		return nil, nil, l.stream.damaged("was changed: it is no head")
	case l.head.format > format:
		return nil, nil, fmt.Errorf("%w: %s has format %d, and this program reads up to %d", ledger.ErrFormat, l.stream.what, l.head.format, format)
	}
	if l.keyring, err = parseRow(l.head.keyring); err != nil || !ledger.IsKeyring(l.keyring) {
		return nil, nil, l.stream.damaged("was changed: it has no keyring")
	}
	return body, mac, nil
}

// chained returns ErrChain unless the first link is a full backup and each other one an increment
// of the link before it.
func (m *restorer) chained() error {
	base := &link{stream: &reader{what: "no backup"}}
	for i, l := range m.links {
		switch of := l.head.base; {
		case i == 0 && of != uuid.Nil:
			return fmt.Errorf("%w: %s, %v, is an increment of the backup %v: begin with the full one", ErrChain, l.stream.what, l.head.backup, of)
		case i > 0 && of == uuid.Nil:
			return fmt.Errorf("%w: %s, %v, is full: begin with it", ErrChain, l.stream.what, l.head.backup)
		case of != base.head.backup:
			return fmt.Errorf("%w: %s, %v, is an increment of the backup %v, and before it comes %v", ErrChain, l.stream.what, l.head.backup, of, base.head.backup)
		}
		base = l
	}
	return nil
}

// follow begins with a link, whose base the store has.
func (m *restorer) follow(ctx context.Context, i int) error {
	if i > 0 {
		m.passed.Records, m.passed.Bytes = m.passed.Records+m.report.Records, m.passed.Bytes+m.report.Bytes
		m.report.Bases = append(m.report.Bases, m.report.Report)
	}
	l := m.links[i]
	m.at, m.stream, m.keyring = i, l.stream, l.keyring
	m.report.Report = Report{ID: l.head.backup, Since: l.head.base}
	if i <= m.reached {
		return nil
	}
	next := *m.mark
	next.Backup, next.Chunks = l.head.backup, 1
	m.reached = i
	return m.writeMark(ctx, &next, func(store.Tx) {}, nil)
}

// chunks restores the chunks of a link, and returns its end.
func (m *restorer) chunks(ctx context.Context) (*end, error) {
	for {
		number, body, err := m.stream.next()
		if err != nil {
			return nil, err
		}
		if body[0] == sortEnd {
			return m.ends(number, body)
		}
		if err := m.chunk(ctx, number, body); err != nil {
			return nil, err
		}
		if m.progress != nil {
			m.progress(Progress{m.passed.Records + m.report.Records, m.passed.Bytes + m.stream.read})
		}
	}
}

// occupy marks the store, or finds the mark of a restoration.
func (m *restorer) occupy(ctx context.Context) error {
	fresh := &ledger.Restoration{ID: uuid.New(), Chunks: 1, Vault: m.moves}
	record := fresh.Next()
	var able bool
	err := m.store.Update(ctx, func(tx store.Tx) error {
		_, able = tx.(store.Loader)
		mark, err := ledger.RestorationOf(tx)
		if err != nil {
			return err
		}
		empty, err := tx.Empty()
		if err != nil || !able {
			return err
		}
		if m.mark = mark; mark == nil && empty {
			m.mark = fresh
			tx.Put(record)
		}
		return nil
	})

	switch {
	case err != nil:
		return ledger.Translate(err)
	case !able:
		return ErrNoLoader
	case m.mark == nil:
		return ErrNotEmpty
	case m.mark.Vault != m.moves && m.moves == uuid.Nil:
		return fmt.Errorf("%w: a vault is being moved into it", ErrNotEmpty)
	case m.mark.Vault != m.moves:
		return fmt.Errorf("%w: another vault is being restored into it", ErrNotEmpty)
	}
	return nil
}

// agree compares the mark with the links. A mark without a backup has the first one written into it.
func (m *restorer) agree(ctx context.Context) error {
	m.reached = slices.IndexFunc(m.links, func(l *link) bool { return l.head.backup == m.mark.Backup })
	first, last := m.links[0].head.backup, m.links[len(m.links)-1].head.backup

	switch {
	case m.mark.Backup == uuid.Nil || m.moves != uuid.Nil: // each pass of a move begins anew
		next := *m.mark
		next.Backup, next.Chunks, next.Ended = first, 1, false
		m.reached = 0
		if err := m.writeMark(ctx, &next, func(store.Tx) {}, nil); err != nil {
			return err
		}
	case m.mark.Ended && m.mark.Deletes && m.mark.Backup == last && m.deletes:
	case m.mark.Ended && m.mark.Deletes:
		return fmt.Errorf("%w: a vault was restored into it, from the backup %v and with a ledger, which has not ended", ErrNotEmpty, m.mark.Backup)
	case m.mark.Ended:
		return fmt.Errorf("%w: a vault was restored into it, which Options.Thaw with %v opens", ErrNotEmpty, m.mark.ID)
	case m.reached < 0:
		return fmt.Errorf("%w: the restoration of another backup, %v, has begun in it", ErrNotEmpty, m.mark.Backup)
	}
	m.report.ID = m.mark.ID
	return nil
}

// chunk restores a chunk that was verified, unless it has been.
func (m *restorer) chunk(ctx context.Context, number uint64, body []byte) (err error) {
	var s span
	var rows []*store.Record
	switch body[0] {
	case sortSpan:
		s, rows, err = parseSpan(body[1:])
	case sortChanges:
		rows, err = parseRows(body[1:])
	default:
		err = fmt.Errorf("is of sort %d, which this program does not know", body[0])
	}
	if err != nil {
		return m.stream.damagedAt(number, "cannot be read: "+err.Error())
	}

	kept := rows[:0]
	for _, r := range rows {
		if r.Version == 0 {
			m.report.Deleted++
		} else {
			m.report.Records++
		}
		switch {
		case ledger.IsKeyring(r): // it is written last
			m.keyring = r.Clone()
		case !ledger.IsRestoration(r):
			kept = append(kept, r)
		}
	}
	switch {
	case m.keyring.Version == 0:
		return m.stream.damagedAt(number, "cannot be restored: the vault had lost its keyring")
	case m.at < m.reached, number < m.mark.Chunks:
		return nil
	case body[0] == sortSpan:
		return m.span(ctx, number, s, kept)
	}
	return m.write(ctx, number+1, func(tx store.Tx) {
		for _, r := range kept {
			tx.Delete(r.Kind, r.ID)
		}
	}, kept)
}

// span restores a span: nothing else stays in it.
func (m *restorer) span(ctx context.Context, number uint64, s span, rows []*store.Record) error {
	for {
		var found []*store.Record
		err := m.store.View(ctx, func(tx store.ReadTx) (err error) {
			found, err = tx.Scan(s.kind, s.after, pageRows)
			return err
		})
		if err != nil {
			return ledger.Translate(err)
		}

		n := 0
		for n < len(found) && s.has(found[n].ID) {
			n++
		}
		gone := found[:n]
		drop := func(tx store.Tx) {
			for _, r := range gone {
				if !ledger.IsRestoration(r) {
					ledger.Delete(tx, r)
				}
			}
		}
		if n < pageRows {
			return m.write(ctx, number+1, drop, rows)
		}
		if err := m.write(ctx, number, drop, nil); err != nil {
			return err
		}
		s.after = gone[n-1].ID
	}
}

// write writes in one transaction, in which the store comes to have some chunks.
func (m *restorer) write(ctx context.Context, chunks uint64, first func(store.Tx), rows []*store.Record) error {
	next := *m.mark
	next.Chunks = chunks
	return m.writeMark(ctx, &next, first, rows)
}

func (m *restorer) writeMark(ctx context.Context, next *ledger.Restoration, first func(store.Tx), rows []*store.Record) error {
	record := next.Next()
	err := m.store.Update(ctx, func(tx store.Tx) error {
		first(tx)
		for _, r := range rows {
			if r.Version > 0 {
				ledger.Within(tx, r.Account).(store.Loader).Load(r)
			}
		}
		tx.Put(record)
		return nil
	})
	if errors.Is(err, store.ErrConflict) {
		err = fmt.Errorf("%w: another program writes to it", ErrNotEmpty)
	}
	if err != nil {
		return ledger.Translate(err)
	}
	m.mark = next
	return nil
}

// ends verifies the end of a link.
func (m *restorer) ends(number uint64, body []byte) (*end, error) {
	e := new(end)
	var f tlv.Fields
	f.From(bytes.Clone(body[1:]))
	e.fields(&f)
	var records, gone int64
	for _, c := range e.counts {
		records, gone = records+c.records, gone+c.gone
	}
	if f.Err() != nil || e.chunks != number || !bytes.Equal(e.digest, m.stream.before) || records != m.report.Records || gone != m.report.Deleted {
		return nil, m.stream.damagedAt(number, "does not agree with the chunks before")
	}
	if m.at+1 < len(m.links) {
		if next := m.links[m.at+1]; !hmac.Equal(next.head.baseEnd, m.stream.mac) {
			return nil, fmt.Errorf("%w: %s is an increment of another end of the backup before it", ErrChain, next.stream.what)
		}
	}
	if err := m.stream.over(number); err != nil {
		return nil, err
	}

	m.report.At, m.report.Damaged, m.report.Bytes, m.report.Chunks = e.at, e.damaged, m.stream.read, number+1
	for _, t := range e.terms {
		m.report.Terms = append(m.report.Terms, uint32(t))
	}
	return e, nil
}

// end writes the keyring, once the end of the last link was read.
func (m *restorer) end(ctx context.Context, e *end) error {
	opened, err := ledger.OpenKeyring(ctx, m.ring, m.keyring)
	if err == nil && opened.Keys.Vault != m.vault {
		err = m.stream.damagedAt(e.chunks, "ends with the keyring of another vault")
	}
	if err != nil {
		return err
	}
	if m.moves != uuid.Nil && opened.Keys.Fence == nil { // the keyring follows once nothing changes any more
		return nil
	}
	keyring, replaced, err := opened.Renewed(ctx)
	if err != nil || m.mark.Ended {
		return err
	}

	next := *m.mark
	next.Ended, next.Deletes = true, m.deletes
	return m.writeMark(ctx, &next, func(tx store.Tx) {
		if replaced.Kind != 0 {
			tx.Delete(replaced.Kind, replaced.ID)
		}
		for _, r := range keyring { // a planted one would be in the way
			tx.Delete(r.Kind, r.ID)
		}
	}, keyring)
}
