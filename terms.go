package cardvault

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/replay"
	"github.com/cardvault/cardvault/internal/reseal"
	"github.com/cardvault/cardvault/internal/rowkey"
	"github.com/cardvault/cardvault/internal/seal"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/invalid"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// newSealer returns the Sealer of the vault.
func newSealer(v *Vault) *reseal.Sealer {
	return reseal.New(reseal.Config{Ledger: v.ledger, Log: v.log, Round: kindReseal, Cares: map[store.Kind]reseal.Care{
		kindToken: {
			Next: func(ctx context.Context, r *store.Record, plain []byte, prints bool) ([]byte, error) {
				return nextShown(ctx, v, r, plain, prints)
			},
			Prints: func(ctx context.Context, r *store.Record) ([]uint32, error) { return printsOf(ctx, v, r) },
		},
		kindRelease: {First: true}, // it was not begun
		kindIdempotency: {Busy: func(_ context.Context, _ *store.Record, plain []byte) (bool, error) {
			return replay.Claimed(plain), nil
		}},
		kindDelivery: {Busy: func(ctx context.Context, r *store.Record, _ []byte) (bool, error) {
			return v.outbox.Busy(ctx, r)
		}},
	}, Named: namedByHash, Keep: max(v.opts.IdempotencyTTL, v.opts.SecurityCodeTTL)})
}

// hashes returns what makes the hashes anew by which records are found. Hashes of card art and
// those that are ids stay under the first lookup key, as [SeriesLookup] says.
func (c *core) hashes() map[store.Kind]ledger.Hashes {
	return map[store.Kind]ledger.Hashes{
		kindToken: func(r *store.Record, plain []byte) ([][]byte, error) {
			t, err := c.of(r.Account).decodeToken(r.ID, uuid.Nil, plain)
			if err != nil {
				return nil, err
			}
			return c.ledger.Box.Lookups(r.Account, businessKeyPurpose, []byte(t.BusinessKey)), nil
		},
		kindMerchant: func(r *store.Record, plain []byte) ([][]byte, error) {
			var m Merchant
			err := ledger.Decode(plain, m.fields)
			return merchants{c.ledger.In(r.Account)}.nameHashes(m.Name), err
		},
		kindNetworkToken: func(r *store.Record, plain []byte) ([][]byte, error) {
			n, err := decodeNetworkToken(plain)
			if err != nil {
				return nil, err
			}
			v := c.of(r.Account)
			return v.networkLookups(v.rows.Mask(kindToken, r.ID), n), nil
		},
		kindRelease: func(_ *store.Record, plain []byte) ([][]byte, error) {
			l, err := decodeRelease(plain)
			if err != nil {
				return nil, err
			}
			return c.networkHashes(l.network, l.ref.ID), nil
		},
		kindDelivery: func(r *store.Record, plain []byte) ([][]byte, error) { return c.outbox.Hashes(r, plain) },
	}
}

// namedByHash are the kinds whose records have a hash of the first lookup key: most as their id.
var namedByHash = []store.Kind{
	kindSession, kindIdempotency, kindAnswer, kindMistakes, kindNotice, kindPayload, kindGivenKey, kindCredential, kindCardArt, kindSubmission,
}

// nextShown returns the shown part of the next version of a token that does not change:
// deliveries that contain its present version contain the next one then. If prints is true its
// fingerprints are made anew under the present keys.
func nextShown(ctx context.Context, v *Vault, r *store.Record, plain []byte, prints bool) ([]byte, error) {
	t, err := v.decodeToken(r.ID, uuid.Nil, plain)
	if err != nil {
		return plain, err
	}
	told := t.toldVersion == r.Version
	if told {
		t.toldVersion++
	}
	if prints {
		err = reprint(ctx, v, r, t)
	}
	if err != nil || !told && !prints {
		return plain, err
	}
	return tlv.Pad(t.encode(nil), 64, len(plain)), nil
}

// printsOf returns the terms of the fingerprints of a token, whose record stays as it is.
func printsOf(ctx context.Context, v *Vault, r *store.Record) ([]uint32, error) {
	opened := *r
	opened.Shown = bytes.Clone(r.Shown)
	plain, err := v.ledger.OpenShown(ctx, &opened)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	t, err := v.decodeToken(r.ID, uuid.Nil, plain)
	if err != nil {
		return nil, v.ledger.Named(r, err)
	}
	return t.prints.Terms(), nil
}

// reprint gives a token the fingerprints of the present keys.
func reprint(ctx context.Context, v *Vault, r *store.Record, t *Token) error {
	keys := v.ledger.Box.Keys()
	want := keys.Fingerprints.Hashing()
	if t.prints = t.prints.Only(want); len(t.prints.Terms()) == len(want) {
		return nil
	}
	number, err := v.In(r.Account).openPAN(ctx, r, t)
	defer number.Wipe()
	if err == nil {
		t.prints = v.ledger.Box.Prints(keys, r.Account, hiding.Of(number))
	}
	return err
}

// A KeySeries names the keys of one purpose. Except for SeriesID, they are rotated apart from others.
type KeySeries string

const (
	// SeriesAudit holds the keys of the audit log: see [AuditOptions]. A rotation destroys the
	// former key in the same transaction. What it has signed is verified by its public key,
	// which stays: see [Vault.AuditPublicKeys]. A process that has not followed yet signs
	// nothing any more.
	SeriesAudit KeySeries = "audit"

	// SeriesFingerprint holds the keys of [Token.Fingerprint]. Vault.Run does the rotation, in
	// two rounds of a few minutes or more. In the first, each token is given a second fingerprint
	// under the new key. Then all tokens show that at once, and two minutes later the former ones
	// and their key are erased. Until then the filter TokenListOptions.Fingerprint takes both.
	SeriesFingerprint KeySeries = "fingerprint"

	// SeriesLookup holds the keys of the hashes by which records are found: tokens by business
	// key, merchants by name, network tokens, and deliveries. Vault.Run does the rotation, as that
	// of SeriesFingerprint. Every record has both hashes before any call searches for the new one,
	// so a damaged record delays that until it is restored or deleted, and RotateKeys called. Two
	// minutes later the former hashes are erased, and then their key is destroyed. A version of this
	// package without SeriesLookup cannot open the vault from then on: it reports ErrFormat.
	//
	// Hashes that have to stay as they are stay under the first key, which is closed by the first
	// rotation and never destroyed: ids of sessions, idempotency keys, payloads, network notices,
	// credentials, given API keys and card art, and references of the account updater.
	SeriesLookup KeySeries = "lookup"

	// SeriesID holds the key that masks row keys, and keys the MACs of backups, sums and the anchor.
	// It never changes, and is never overdue: ids that the world holds depend on it.
	SeriesID KeySeries = "id"
)

// RotateSeries starts a new term of a series. [Vault.RotateKeys] is for the keys under which records
// are sealed; its limits and opts hold here too. A lost keyring is not repaired.
//
// Errors: a FieldError for a series that does not exist or never changes; ErrRotating for a series
// whose last rotation is under way; ErrDamaged for a keyring that was lost or put back.
func (v *Vault) RotateSeries(ctx context.Context, s KeySeries, opts *CallOptions) (_ *Outcome, err error) {
	defer v.whole().doing(ctx, "rotate key series", &err)
	switch s {
	case SeriesAudit:
		return rotate(ctx, v, ledger.OpRotateAudit, opts, v.ledger.RotateAudit)
	case SeriesFingerprint:
		return rotateHashes(ctx, v, ledger.OpRotateFingerprint, opts, v.ledger.RotateFingerprint)
	case SeriesLookup:
		return rotateHashes(ctx, v, ledger.OpRotateLookup, opts, v.ledger.RotateLookup)
	}
	return nil, &FieldError{"Series", invalid.Enum, "must name a series that can be rotated"}
}

// rotateHashes is rotate for a series of which Run does the rest.
func rotateHashes(ctx context.Context, v *Vault, op ledger.Operation, opts *CallOptions, begin func(context.Context, func(store.Tx) error) error) (*Outcome, error) {
	made, err := rotate(ctx, v, op, opts, begin)
	if err == nil && !made.Replayed {
		v.sealer.Woken()
	}
	return made, err
}

// A TermState says what the key of a term is used for.
type TermState string

const (
	TermPending   TermState = "pending"   // of hashes: they are made under it too, and not shown yet
	TermActive    TermState = "active"    // records are sealed under it
	TermReadable  TermState = "readable"  // records are read under it, and sealed anew under the active one; of SeriesLookup: found under it too
	TermClosed    TermState = "closed"    // likewise, and nothing is written under it any more: see RetireTerm, and KeySeries for exceptions
	TermDestroyed TermState = "destroyed" // the key is gone, and no record needs it
)

// A KeyReport says under which key terms the records of a vault are sealed.
type KeyReport struct {
	Terms []KeyTerm // of the keys under which records are sealed, in their order

	// Others are the terms of each KeySeries, in their order. Nothing is sealed under them.
	Others []KeyTerm

	// Wrappings are the key-encryption keys under which the keyring has been, the present one
	// last. The last 32 are kept.
	Wrappings []KeyWrapping

	// Unreadable is the number of records whose term cannot be read. They are damaged.
	Unreadable int64
}

// A KeyWrapping is the time of one key-encryption key. A key that its KMS rotates in place, under
// one id, stays the same key here.
type KeyWrapping struct {
	KeyID   string        // of its [KeyWrapper]
	Since   time.Time     // when the id first came into use; of the vault, if that was before it was kept
	Age     time.Duration // since then, of a former one until the next
	Overdue bool          // whether Age of the present one is more than [Options.CryptoPeriod]
}

// A KeyTerm is the time of one key.
type KeyTerm struct {
	Series    KeySeries // "" for a key under which records are sealed
	Number    uint32
	State     TermState
	CreatedAt time.Time     // of the key; of the vault, if it was made before that was kept
	Age       time.Duration // since CreatedAt, until DestroyedAt

	ClosedAt, DestroyedAt time.Time // zero before

	// Overdue is whether Age is more than [Options.CryptoPeriod] while the term is active or
	// has records. What the first key of SeriesLookup keeps does not count, nor does SeriesID.
	Overdue bool

	// Records is the number of records by kind, such as "token": those with a part or a
	// hash under this term. A record with two terms counts in both.
	Records map[string]int64
}

// KeyReport counts the records of the whole vault by key term and kind. It reads every
// record, which takes seconds for each million, so it is for an operator and not for a
// request. It takes no lock: a record that is written meanwhile counts by the terms that it
// has when it is read, and a record that is new or deleted may not count. Of a term that
// nothing is written under any more, a count of zero is final.
func (v *Vault) KeyReport(ctx context.Context) (_ *KeyReport, err error) {
	defer v.whole().doing(ctx, "report keys", &err)
	count, err := v.sealer.Count(ctx)
	if err != nil {
		return nil, err
	}
	if err := v.ledger.Reload(ctx); err != nil { // afterwards: a record may have a term begun meanwhile
		return nil, err
	}

	at := now()
	report := &KeyReport{Unreadable: count.Unread, Wrappings: wrappingsOf(v, at)}
	for _, m := range v.ledger.Box.Keys().Masters {
		report.Terms = append(report.Terms, aged(v, termOf(v, "", &m, count.Records[m.Number]), at))
		delete(count.Records, m.Number)
	}
	for _, m := range v.ledger.Box.Keys().Audits {
		report.Others = append(report.Others, aged(v, termOf(v, SeriesAudit, &m, nil), at))
	}
	for _, m := range v.ledger.Box.Keys().Fingerprints {
		report.Others = append(report.Others, aged(v, termOf(v, SeriesFingerprint, &m, count.Prints[m.Number]), at))
	}
	for i, m := range v.ledger.Box.Keys().Lookups {
		t := aged(v, termOf(v, SeriesLookup, &m, count.Lookups[m.Number]), at)
		t.Overdue = t.Overdue && (i > 0 || t.State == TermActive) // what stays under the first key never moves
		report.Others = append(report.Others, t)
	}
	report.Others = append(report.Others, aged(v, termOf(v, SeriesID, v.ledger.Box.Keys().IDs.Active(), nil), at))
	for _, kinds := range count.Records { // of terms that never were
		for _, n := range kinds {
			report.Unreadable += n
		}
	}
	return report, nil
}

// wrappingsOf returns the key-encryption keys of the report.
func wrappingsOf(v *Vault, at time.Time) (all []KeyWrapping) {
	kept := v.ledger.Box.Keys().Wrappings
	for i, w := range kept {
		first := slices.IndexFunc(kept, func(former seal.Wrapping) bool { return former.KeyID == w.KeyID }) // a vault may go back to a key
		k := KeyWrapping{KeyID: w.KeyID, Since: termBegan(v, &seal.Term{Created: kept[first].Since})}
		if i < len(kept)-1 {
			k.Age = kept[i+1].Since.Sub(k.Since)
		} else {
			k.Age = at.Sub(k.Since)
			k.Overdue = k.Age > v.opts.CryptoPeriod
		}
		all = append(all, k)
	}
	return all
}

// termOf returns a term of the report, without its age.
func termOf(v *Vault, s KeySeries, m *seal.Term, records map[store.Kind]int64) KeyTerm {
	t := KeyTerm{Series: s, Number: m.Number, State: termStates[m.State], CreatedAt: termBegan(v, m), DestroyedAt: m.Destroyed, Records: map[string]int64{}}
	if m.State != seal.Readable {
		t.ClosedAt = m.Closed
	}
	for kind, n := range records {
		t.Records[cmp.Or(names[kind].Kind, fmt.Sprint("kind ", kind))] += n
	}
	return t
}

// aged returns a term with its age.
func aged(v *Vault, t KeyTerm, at time.Time) KeyTerm {
	if !t.DestroyedAt.IsZero() {
		at = t.DestroyedAt
	}
	t.Age = at.Sub(t.CreatedAt)
	t.Overdue = t.Age > v.opts.CryptoPeriod && (t.State == TermActive || len(t.Records) > 0) && t.Series != SeriesID
	return t
}

// Reseal seals records of former key terms anew, as Run does, and does no other background
// work. It also goes on with a rotation of a [KeySeries], which takes several calls.
// It is for a program of the operator: without the adapters and the event sink of the
// vault, Run would erase expired tokens and pass no events on. Reseal returns once no record
// can be sealed at present. [Vault.KeyReport] counts those that are left, such as records in
// use, which a later call seals. While another process seals records, Reseal seals none.
func (v *Vault) Reseal(ctx context.Context) (err error) {
	defer v.doing(ctx, "reseal records", &err)
	v.ledger.Look(ctx)
	return v.jobs.Drain(ctx, kindReseal)
}

var termStates = map[seal.State]TermState{
	seal.Pending: TermPending, seal.Active: TermActive, seal.Readable: TermReadable, seal.Closed: TermClosed, seal.Destroyed: TermDestroyed,
}

// RetireTerm closes a former key term, and destroys its key once nothing needs the key any
// more. It returns nil when the key is destroyed, in all memory of this process too; other
// processes on the store drop it within 30 seconds in [Vault.Run]. Before that the error is a
// [*TermInUseError], which says what is left to wait for: Run and Drain do the rest, and the
// call may be repeated. It reads all records, as KeyReport does.
//
// From the first call on nothing is written under the term, by any process. Each transaction
// checks that, so no clock matters, and a process that was stopped in the middle of a call
// seals its records again under the present term. If it was stopped until the key was
// destroyed, the call fails with ErrUnavailable. Closing cannot be undone.
//
// Backups hold the key as well, in their keyring, and so do pages of the store that are free
// but not overwritten. There the term is dead only when the key-encryption key that wrapped
// those keyrings is destroyed too: call [Vault.ChangeKeyring] afterwards, and destroy the
// former key once the vault is not to be restored from backups of before.
//
// Errors: ErrTermActive for the term under which records are sealed, ErrTermUnknown for a
// number that no term has, and the errors of ChangeKeyring.
func (v *Vault) RetireTerm(ctx context.Context, term uint32) (err error) {
	defer v.whole().doing(ctx, "retire term", &err)
	rest, err := v.sealer.Retire(ctx, term)
	if err == nil && rest != nil {
		err = (*TermInUseError)(rest)
	}
	return err
}

// A TermInUseError is returned by RetireTerm for a term that is closed and whose key is still
// needed.
type TermInUseError struct {
	Term uint32

	// Records is the number of records with a part under the term. Run seals them anew, except
	// for damaged ones, which have to be restored from a backup or deleted.
	Records int64

	// Unreadable is the number of records whose term cannot be read. They are damaged.
	Unreadable int64

	// Until is when the time of security codes and idempotency keys is over that were stored
	// before the term was closed: the longer one of [Options.SecurityCodeTTL] and
	// [Options.IdempotencyTTL] after that.
	Until time.Time
}

func (e *TermInUseError) Error() string {
	return fmt.Sprintf("%v: term %d by %d records, by %d that cannot be read, and until %s",
		ErrTermInUse, e.Term, e.Records, e.Unreadable, e.Until.Format(time.RFC3339))
}

func (e *TermInUseError) Unwrap() error { return ErrTermInUse }

// termBegan returns when a key was made. A key from before that was kept is as old as the
// vault, and that as its default account.
func termBegan(v *Vault, m *seal.Term) time.Time {
	if !m.Created.IsZero() {
		return m.Created
	}
	return rowkey.Time(v.whole().rows.Unmask(kindAccount, v.ledger.First))
}

// overdueBy returns how long the active key of a series has been overdue, 0 if it is not.
func overdueBy(v *Vault, s seal.Series) time.Duration {
	return max(0, now().Sub(termBegan(v, s.Active()))-v.opts.CryptoPeriod)
}

// ageWatch is the pause between warnings of a key that is overdue.
const ageWatch = time.Hour

// watchAge warns of a key that is overdue, until ctx ends.
func watchAge(v *Vault) func(context.Context) {
	return func(ctx context.Context) {
		for {
			keys := v.ledger.Box.Keys()
			if over := overdueBy(v, keys.Masters); over > 0 {
				v.log.Warn("the key term is older than Options.CryptoPeriod: call RotateKeys", "term", v.ledger.Term(), "overdue", over.Round(time.Hour))
			}
			for name, series := range map[KeySeries]seal.Series{SeriesAudit: keys.Audits, SeriesFingerprint: keys.Fingerprints, SeriesLookup: keys.Lookups} {
				if over := overdueBy(v, series); over > 0 && (name != SeriesAudit || v.audit != nil) {
					v.log.Warn("a key is older than Options.CryptoPeriod: call RotateSeries", "series", name, "term", series.Active().Number, "overdue", over.Round(time.Hour))
				}
			}

			select {
			case <-ctx.Done():
				return
			case <-time.After(ageWatch):
			}
		}
	}
}
