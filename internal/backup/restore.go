package backup

import (
	"bytes"
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"io"

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

// A Restored describes a restored vault.
type Restored struct {
	ID uuid.UUID // that thaws the vault
	Report
}

// Restore writes the records of a stream into an empty store, chunk by chunk, each once it is
// verified. The keyring comes last, with a new term: before that the store has no vault. Restore
// goes on with a restoration of the same backup that has ended early. With deletes, the vault
// does not open before Delete has ended.
func Restore(ctx context.Context, s store.Store, ring ledger.Ring, r io.Reader, deletes bool, progress func(Progress)) (*Restored, error) {
	m := &restorer{store: s, ring: ring, stream: reader{r: r}, deletes: deletes, progress: progress}
	return m.run(ctx)
}

func (m *restorer) run(ctx context.Context) (*Restored, error) {
	if err := m.occupy(ctx); err != nil { // first: a place whose restoration has failed must not open as a new vault
		return nil, err
	}
	if err := m.head(ctx); err != nil {
		return nil, err
	}
	if err := m.agree(ctx); err != nil {
		return nil, err
	}

	for {
		number, body, err := m.stream.next()
		if err != nil {
			return nil, err
		}

		if body[0] == sortEnd {
			return m.end(ctx, number, body)
		}
		if err := m.chunk(ctx, number, body); err != nil {
			return nil, err
		}
		if m.progress != nil {
			m.progress(Progress{m.report.Records, m.stream.read})
		}
	}
}

// A restorer restores one backup.
type restorer struct {
	store    store.Store
	ring     ledger.Ring
	stream   reader
	deletes  bool
	progress func(Progress)
	moves    uuid.UUID           // the vault that moves into the store; zero: none
	mark     *ledger.Restoration // as it is stored
	vault    uuid.UUID
	keyring  *store.Record // the latest in the stream
	report   Restored
}

// head reads the head. The keys that authenticate it are in it, sealed.
func (m *restorer) head(ctx context.Context) error {
	var begin [len(magic)]byte
	if err := m.stream.full(begin[:]); err != nil {
		return err
	}
	if string(begin[:]) != magic {
		return m.stream.damaged("does not begin with the text of a backup")
	}
	body, mac, err := m.stream.unverified()
	if err != nil {
		return err
	}

	h := new(head)
	var f tlv.Fields
	f.From(body[1:])
	h.fields(&f)
	switch {
	case body[0] != sortHead || f.Err() != nil:
		return m.stream.damaged("was changed: it is no head")
	case h.format > format:
		return fmt.Errorf("%w: the backup has format %d, and this program reads up to %d", ledger.ErrFormat, h.format, format)
	}

	if m.keyring, err = parseRow(bytes.Clone(h.keyring)); err != nil || !ledger.IsKeyring(m.keyring) {
		return m.stream.damaged("was changed: it has no keyring")
	}
	opened, err := ledger.OpenKeyring(ctx, m.ring, m.keyring)
	if err != nil {
		return fmt.Errorf("chunk 0 of the backup: %w", err)
	}
	m.stream.sums, m.vault = newSums(opened.Keys, h.backup), opened.Keys.Vault
	if !hmac.Equal(mac, m.stream.sums.next(body)) || h.vault != m.vault {
		return damaged(0, "was changed")
	}
	m.report.Report.ID = h.backup
	return nil
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

// agree compares the mark with the backup, which is written into a mark without one.
func (m *restorer) agree(ctx context.Context) error {
	switch {
	case m.mark.Backup == uuid.Nil || m.moves != uuid.Nil: // each pass of a move begins anew
		next := *m.mark
		next.Backup, next.Chunks, next.Ended = m.report.Report.ID, 1, false
		if err := m.writeMark(ctx, &next, func(store.Tx) {}, nil); err != nil {
			return err
		}
	case m.mark.Ended && m.mark.Deletes && m.mark.Backup == m.report.Report.ID && m.deletes:
	case m.mark.Ended && m.mark.Deletes:
		return fmt.Errorf("%w: a vault was restored into it, from the backup %v and with a ledger, which has not ended", ErrNotEmpty, m.mark.Backup)
	case m.mark.Ended:
		return fmt.Errorf("%w: a vault was restored into it, which Options.Thaw with %v opens", ErrNotEmpty, m.mark.ID)
	case m.mark.Backup != m.report.Report.ID:
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
		return damaged(number, "cannot be read: "+err.Error())
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
		return damaged(number, "cannot be restored: the vault had lost its keyring")
	case number < m.mark.Chunks:
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

// end verifies the end, and writes the keyring.
func (m *restorer) end(ctx context.Context, number uint64, body []byte) (*Restored, error) {
	e := new(end)
	var f tlv.Fields
	f.From(body[1:])
	e.fields(&f)
	var records, gone int64
	for _, c := range e.counts {
		records, gone = records+c.records, gone+c.gone
	}
	if f.Err() != nil || e.chunks != number || !bytes.Equal(e.digest, m.stream.before) || records != m.report.Records || gone != m.report.Deleted {
		return nil, damaged(number, "does not agree with the chunks before")
	}
	switch n, err := io.ReadFull(m.stream.r, make([]byte, 1)); {
	case n > 0:
		return nil, damaged(number, "is not the last: something follows")
	case err != io.EOF:
		return nil, fmt.Errorf("cardvault: reading the backup: %w", err)
	}

	opened, err := ledger.OpenKeyring(ctx, m.ring, m.keyring)
	if err == nil && opened.Keys.Vault != m.vault {
		err = damaged(number, "ends with the keyring of another vault")
	}
	if err != nil {
		return nil, err
	}
	if m.moves != uuid.Nil && opened.Keys.Fence == nil { // the keyring follows once nothing changes any more
		return m.reported(e, number), nil
	}
	keyring, replaced, err := opened.Renewed(ctx)
	if err != nil {
		return nil, err
	}
	if next := *m.mark; !next.Ended {
		next.Ended, next.Deletes = true, m.deletes
		err = m.writeMark(ctx, &next, func(tx store.Tx) {
			if replaced.Kind != 0 {
				tx.Delete(replaced.Kind, replaced.ID)
			}
			for _, r := range keyring { // a planted one would be in the way
				tx.Delete(r.Kind, r.ID)
			}
		}, keyring)
		if err != nil {
			return nil, err
		}
	}

	return m.reported(e, number), nil
}

// reported returns the report, once the end of the stream was read.
func (m *restorer) reported(e *end, number uint64) *Restored {
	m.report.At, m.report.Damaged, m.report.Bytes, m.report.Chunks = e.at, e.damaged, m.stream.read, number+1
	for _, t := range e.terms {
		m.report.Terms = append(m.report.Terms, uint32(t))
	}
	return &m.report
}
