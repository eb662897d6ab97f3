package backup

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

const (
	holdBytes = 8 << 20 // of changes that are read before they are written
	laps      = 256     // how often a writer that is too slow is waited for

	readAgain = 256 // changed records in a View

	pause    = 5 * time.Millisecond  // for a commit that is under way
	mostRest = 20 * time.Millisecond // after a page, while others write
)

// A Progress reports how far a backup or its restoration has come.
type Progress struct {
	Records int64 // in the stream so far; a record that is written again counts again
	Bytes   int64 // of the stream so far
}

// A Report describes a backup.
type Report struct {
	ID      uuid.UUID
	At      time.Time // its instant
	Records int64     // in the stream; a record that was written again counts again
	Deleted int64     // likewise, of deletions
	Damaged int64     // records that the store could not read, and that are not in it

	Since     uuid.UUID // the base; zero: the backup is full
	Unchanged int64     // records that are in the base alone

	Bytes  int64 // of the stream
	Chunks uint64
	Terms  []uint32 // of the keys under which records may be sealed

	Unrecorded bool // for the caller
}

// A Config says what a backup works with.
type Config struct {
	Ledger   *ledger.Ledger
	Progress func(Progress) // nil: none
	Most     int            // changed records that are held one by one; 0: 131,072

	Since    io.ReadSeeker // the manifest of the base; nil: none, the backup is full
	Manifest io.Writer     // takes the manifest of the backup; nil: none

	known *walk   // what the place has already; nil: nothing is left out
	found *agreed // is set with known
}

// ErrStore is returned for a store that cannot be backed up while it is in use.
var ErrStore = errors.New("cardvault: the store is neither a store.Snapshotter nor a store.Watcher: back it up by its own means")

// ErrSlow is returned when a writer does not take the stream as fast as records change.
var ErrSlow = fmt.Errorf("%w: records change faster than the backup is written", ledger.ErrUnavailable)

// Make writes the records of a vault to w. From a store.Snapshotter it reads one snapshot. From
// another store, short Views read all records, and then the records that have changed
// meanwhile, until the few changes left fit into one View. That View is the instant of the
// backup. Make does not call w during a View.
//
// The error is ledger.ErrDamaged, with a report, if the stream is whole but some records
// could not be read.
func Make(ctx context.Context, c Config, w io.Writer) (*Report, error) {
	l := c.Ledger
	keyring, err := l.KeyringRecord(ctx)
	if err != nil {
		return nil, err
	}
	m := &maker{ledger: l, w: w, progress: c.Progress, known: c.known, found: c.found, changes: newChanges(cmp.Or(c.Most, mostChanges)), counts: map[store.Kind]*count{}}
	m.scanner.ends = blockEnd
	if c.Since != nil || c.Manifest != nil {
		m.scanner.ends = fineEnd
	}
	if err := m.begin(c, keyring); err != nil {
		return nil, err
	}

	m.at = ledger.Now()
	able, err := l.Snapshot(ctx, func(tx store.ReadTx) error {
		m.scanner.view = func(_ context.Context, fn func(store.ReadTx) error) error { return fn(tx) }
		return m.copyAll(ctx)
	})
	if !able {
		err = m.follow(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := m.end(); err != nil {
		return nil, err
	}
	if m.report.Damaged > 0 {
		err = fmt.Errorf("%w: %d records cannot be read, and are not in the backup", ledger.ErrDamaged, m.report.Damaged)
	}
	return &m.report, err
}

// A maker makes one backup.
type maker struct {
	ledger   *ledger.Ledger
	w        io.Writer
	progress func(Progress)
	scanner  scanner
	known    *walk
	found    *agreed
	manifest *manifestWriter // nil: none
	changes  *changes
	sums     *sums
	at       time.Time // the instant
	counts   map[store.Kind]*count
	report   Report

	bodies [][]byte // of chunks to be written
	held   int      // bytes of these
	row    []byte   // the last one
}

// begin writes the head, and the head of the manifest.
func (m *maker) begin(c Config, keyring *store.Record) error {
	keys := m.ledger.Box.Keys()
	m.report.ID = uuid.New()
	m.sums = newSums(keys, m.report.ID)
	h := &head{format: formatFull, backup: m.report.ID, vault: keys.Vault, began: ledger.Now(), keyring: appendRow(nil, keyring)}
	if c.Since != nil {
		base, err := openManifest(keys, c.Since)
		if err != nil {
			return err
		}
		if m.known, err = base.walk(keys); err != nil {
			return err
		}
		h.format, h.base, h.baseEnd = format, base.backup, base.end
		m.report.Since = base.backup
	}

	if err := m.writeAll([]byte(magic)); err != nil {
		return err
	}
	if _, err := m.write(bodyOf(sortHead, h.fields)); err != nil || c.Manifest == nil {
		return err
	}
	m.manifest = &manifestWriter{w: c.Manifest}
	return m.manifest.begin(keys, m.report.ID)
}

// follow makes the backup of a store that names what changes.
func (m *maker) follow(ctx context.Context) error {
	m.scanner.view = m.ledger.View
	stop, able := m.ledger.Watch(m.changes.changing)
	if !able {
		return ErrStore
	}
	defer stop()
	if err := m.copyAll(ctx); err != nil {
		return err
	}

	for lap := 0; lap < laps; {
		for _, s := range m.changes.spans() {
			lap++
			if err := m.copySpan(ctx, s); err != nil {
				return err
			}
		}
		last, err := m.readAgain(ctx)
		if err != nil {
			return err
		}
		if n, _ := m.changes.len(); n == 0 && !last {
			// A commit of more records than a View reads is under way.
			if err := sleep(ctx, pause); err != nil {
				return err
			}
		}
		if last || m.held >= holdBytes {
			if err := m.flush(ctx); err != nil || last {
				return err
			}
			if n, _ := m.changes.len(); n > readAgain {
				lap++
			}
		}
	}
	return ErrSlow
}

// copyAll writes all records, and some of the records that change meanwhile.
func (m *maker) copyAll(ctx context.Context) error {
	for at := (place{kind: 1}); at.kind != 0; {
		began := time.Now()
		var err error
		if at, err = m.copyPage(ctx, at); err != nil {
			return err
		}

		n, spills := m.changes.len()
		if spills > laps {
			return ErrSlow // new records may come as fast as they are read
		}
		if n >= readAgain {
			if _, err := m.readAgain(ctx); err != nil {
				return err
			}
		}
		if err := m.flush(ctx); err != nil {
			return err
		}
		if n > 0 { // there are writers, which have the other half of the time
			if err := sleep(ctx, min(time.Since(began), mostRest)); err != nil {
				return err
			}
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// copyPage adds the records that come next, without the blocks that the place has.
func (m *maker) copyPage(ctx context.Context, at place) (next place, err error) {
	if m.known == nil && m.manifest == nil {
		p, err := m.scanner.page(ctx, at, pageKinds)
		m.report.Damaged += int64(len(p.damaged))
		if len(p.rows) > 0 {
			m.addSpan(p.span, p.rows)
		}
		return p.next, err
	}

	blocks, next, err := m.scanner.blocks(ctx, at)
	if err != nil {
		return next, err
	}
	run := new(fullBlock) // of blocks that follow each other
	for _, b := range blocks {
		m.report.Damaged += int64(b.damaged)
		has := false
		if m.known != nil {
			if has, err = m.known.has(ctx, &b.block); err != nil {
				return next, err
			}
		}
		if m.found.add(&b.block, has); has {
			m.report.Unchanged += int64(b.records)
			m.addRun(run)
			run = new(fullBlock)
		} else {
			run.extend(b)
		}
		if err := m.manifest.block(&b.block); err != nil {
			return next, err
		}
	}
	m.addRun(run)
	return next, nil
}

// extend adds the block that comes next.
func (b *fullBlock) extend(next *fullBlock) {
	if b.kind == 0 {
		b.kind, b.after = next.kind, next.after
	}
	b.through, b.rows = next.through, append(b.rows, next.rows...)
}

// addRun adds the records of a run. A full backup has no spans without records.
func (m *maker) addRun(run *fullBlock) {
	if run.kind != 0 && (m.known != nil || len(run.rows) > 0) {
		m.addSpan(run.span, run.rows)
	}
}

// copySpan writes the records of a span.
func (m *maker) copySpan(ctx context.Context, s span) error {
	if err := m.manifest.touched(s); err != nil {
		return err
	}

	for {
		p, err := m.scanner.page(ctx, place{s.kind, s.after}, 1)
		if err != nil {
			return err
		}
		m.report.Damaged += int64(len(p.damaged))
		last := bytes.Compare(p.through[:], s.through[:]) >= 0
		if last {
			p.through = s.through
			p.rows = slices.DeleteFunc(p.rows, func(r *store.Record) bool { return !p.has(r.ID) })
		}
		m.addSpan(p.span, p.rows)
		if err := m.flush(ctx); err != nil || last {
			return err
		}
		s.after = p.through
	}
}

// readAgain reads some of the changed records. It reports whether these were the last: then the
// View was the instant of the backup.
func (m *maker) readAgain(ctx context.Context) (last bool, err error) {
	batch := m.changes.take(readAgain)
	var rows []*store.Record
	unread, at := int64(0), ledger.Now()

	err = m.scanner.view(ctx, func(tx store.ReadTx) error {
		keys := batch
		all, is := m.changes.with(batch, readAgain)
		if last = is; last {
			keys = all
		}
		rows, unread, at = nil, 0, ledger.Now()
		for _, k := range keys {
			r, err := tx.Get(k.Kind, k.ID)
			switch {
			case ledger.Unreadable(err):
				unread++
				r = &store.Record{Kind: k.Kind, ID: k.ID}
			case errors.Is(err, store.ErrNotFound):
				r = &store.Record{Kind: k.Kind, ID: k.ID}
			case err != nil:
				return err
			}
			rows = append(rows, r)
		}
		return nil
	})
	if err != nil {
		return false, err
	}

	m.at = at
	m.report.Damaged += unread
	m.addChanges(rows)
	for _, r := range rows {
		if err := m.manifest.touched(span{r.Kind, before(r.ID), r.ID}); err != nil {
			return false, err
		}
	}
	return last, nil
}

// rowBytes is about what a record takes beside its sealed parts.
const rowBytes = 160

// addSpan adds the records of a span.
func (m *maker) addSpan(s span, rows []*store.Record) {
	left := 0
	for _, r := range rows {
		left += rowBytes + len(r.Shown) + len(r.Secret)
	}
	body := s.head(left)
	for _, r := range rows {
		if len(body) >= chunkBytes {
			copy(body[spanHead-16:], s.after[:]) // which is the last in this chunk
			m.add(body)
			left -= len(body)
			body = s.head(max(left, 0))
		}
		body, s.after = m.addRow(body, r), r.ID
	}
	m.add(body)
}

func (m *maker) addChanges(rows []*store.Record) {
	body := []byte{sortChanges}
	for _, r := range rows {
		if len(body) >= chunkBytes {
			m.add(body)
			body = []byte{sortChanges}
		}
		body = m.addRow(body, r)
	}
	if len(body) > 1 {
		m.add(body)
	}
}

func (m *maker) addRow(body []byte, r *store.Record) []byte {
	c := m.counts[r.Kind]
	if c == nil {
		c = &count{kind: r.Kind}
		m.counts[r.Kind] = c
	}
	if r.Version == 0 {
		c.gone++
		m.report.Deleted++
	} else {
		c.records++
		m.report.Records++
	}
	m.row = appendRow(m.row[:0], r)
	return append(binary.AppendUvarint(body, uint64(len(m.row))), m.row...)
}

func (m *maker) add(body []byte) {
	m.bodies = append(m.bodies, body)
	m.held += len(body)
}

// flush writes the chunks that were added.
func (m *maker) flush(ctx context.Context) error {
	for _, body := range m.bodies {
		if m.ledger.Closed() {
			return ledger.ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := m.write(body); err != nil {
			return err
		}
	}
	m.bodies, m.held = nil, 0
	return nil
}

// end writes the end.
func (m *maker) end() error {
	e := &end{at: m.at, chunks: m.sums.number, digest: m.sums.digest.Sum(nil), damaged: m.report.Damaged}
	for _, kind := range slices.Sorted(maps.Keys(m.counts)) {
		e.counts = append(e.counts, *m.counts[kind])
	}
	for _, t := range m.ledger.Box.Keys().Masters {
		e.terms = append(e.terms, term(t.Number))
		m.report.Terms = append(m.report.Terms, t.Number)
	}
	m.report.At, m.report.Chunks = e.at, e.chunks+1
	mac, err := m.write(bodyOf(sortEnd, e.fields))
	if err != nil {
		return err
	}
	return m.manifest.close(mac)
}

// write writes a chunk, and returns its MAC.
func (m *maker) write(body []byte) (mac []byte, err error) {
	chunk, mac := m.sums.chunk(body)
	if err := m.writeAll(chunk); err != nil {
		return nil, err
	}
	if m.progress != nil {
		m.progress(Progress{m.report.Records, m.report.Bytes})
	}
	return mac, nil
}

func (m *maker) writeAll(b []byte) error {
	n, err := m.w.Write(b)
	m.report.Bytes += int64(n)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("cardvault: writing the backup: %w", err)
	}
	return nil
}
