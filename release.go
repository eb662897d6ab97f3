package cardvault

import (
	"context"
	"errors"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// A release is a network token that no token holds any more and that awaits deletion at the
// network. Nothing else of the token is left.
type release struct {
	network string
	ref     network.Ref // without ID: the outcome of the provisioning is unknown
	tries   uint64

	// done is whether it has been deleted. The record stays for a lease: it
	// refuses an answer that is under way and still names the network token.
	done bool
}

const (
	releaseNetwork = iota + 1
	releaseID
	releaseKey
	releaseTries
	releaseDone
)

func (r *release) fields(f *tlv.Fields) {
	tlv.Text(f, releaseNetwork, &r.network)
	tlv.Text(f, releaseID, &r.ref.ID)
	tlv.Text(f, releaseKey, &r.ref.IdempotencyKey)
	tlv.Uint(f, releaseTries, &r.tries)
	f.Bool(releaseDone, &r.done)
}

func (r *release) encode() []byte { return tlv.Encode(r.fields) }

func decodeRelease(plain []byte) (*release, error) {
	r := new(release)
	err := ledger.Decode(plain, r.fields)
	r.ref.Network = r.network
	return r, err
}

// errReleasing is returned in a transaction that finds its network token about
// to be deleted.
var errReleasing = errors.New("cardvault: network token is about to be deleted at the network")

// maxReleases bounds how many releases of one network token are looked at.
const maxReleases = 100

// newRelease returns the record of a release. Until it is worked on it has
// version 1, and can be withdrawn.
func (v *Vault) newRelease(name string, ref network.Ref, due time.Time) (*store.Record, error) {
	row, err := v.rows.NewRow()
	if err != nil {
		return nil, err
	}
	l := &release{network: name, ref: ref}
	r := &store.Record{Kind: kindRelease, ID: row, Account: v.rows.ID, Due: due, Version: 1}
	if ref.ID != "" {
		r.Lookup = v.networkHashes(name, ref.ID)
	}
	return r, v.rows.SealShown(r, l.encode())
}

// holder returns a network token that has a hash, other than a row's own, or nil. The error
// is ErrDamaged if only unreadable ones have the hash: the holder of a network token
// decides whether it is deleted at the network.
func (v *Vault) holder(ctx context.Context, hash []byte, except uuid.UUID) (holder *store.Record, err error) {
	err = v.rows.FindBy(ctx, kindNetworkToken, hash, holdersRead, func(r *store.Record, readable bool) bool {
		if readable && r.ID != except {
			holder = r
		}
		return holder == nil
	})
	return holder, err
}

// holdersRead bounds the network tokens that are read to find a readable one.
const holdersRead = 16

// heldStill reports whether a holder that was found still holds a network token. It
// returns errChanged if that is left open because others hold it by now.
func (v *Vault) heldStill(tx store.ReadTx, hash []byte, holder *store.Record) (bool, error) {
	if holder != nil {
		if ok, err := ledger.Same(tx, holder); ok || err != nil {
			return ok, err
		}
	}
	found, err := tx.Lookup(kindNetworkToken, hash, 1)
	if err == nil && len(found) > 0 || errors.Is(err, ErrDamaged) {
		err = errChanged
	}
	return false, err
}

// releaseLater returns the release of a network token that came too late for its
// token, and what stores it. If others hold the network token it is withdrawn when it is
// due.
func (v *Vault) releaseLater(ref network.Ref, id string) (*store.Record, func(store.Tx) error, error) {
	ref.ID = id
	r, err := v.newRelease(ref.Network, ref, now())
	return r, func(tx store.Tx) error { tx.Put(r); return nil }, err
}

// Pauses between the tries of a release follow those of a provisioning, then are daily, for
// releaseTriesMax tries in all: about a month.
const releaseTriesMax = 35

// releaseNow deletes a network token at the network.
func (v *Vault) releaseNow(ctx context.Context, j *jobs.Job, l *release) error {
	rec := j.Record
	if l.done {
		return v.jobs.Finish(ctx, rec)
	}

	found, err := v.callRelease(ctx, l)
	switch {
	case err == nil && !found:
		return v.jobs.Finish(ctx, rec)
	case err == nil && l.done:
		rec.Due = now().Add(v.jobs.Lease(kindNetworkToken))
		return v.jobs.Again(ctx, rec, l.encode())
	case err == nil:
		// Who holds it is seen when the job is claimed again.
		rec.Lookup = v.networkHashes(l.network, l.ref.ID)
		rec.Due = now()
		return v.jobs.Again(ctx, rec, l.encode())
	case errors.Is(err, ErrClosed):
		return err
	}

	v.log.Warn("network token could not be deleted at the network", "tries", l.tries+1, "error", leak.Printable(err))
	if l.tries++; l.tries >= releaseTriesMax {
		v.log.Error("network token is left at the network", "error", leak.Printable(err))
		return v.jobs.Finish(ctx, rec)
	}

	wait := 24 * time.Hour
	if l.tries <= uint64(len(retries)) {
		wait = retries[l.tries-1]
	}

	rec.Due = now().Add(v.pace(wait))
	return v.jobs.Again(ctx, rec, l.encode())
}

// callRelease makes the next call of a release: it deletes the network token, or
// finds out which it is. It reports whether there is one.
func (v *Vault) callRelease(ctx context.Context, l *release) (found bool, err error) {
	if !v.opts.powers.Has(l.network) {
		return false, errors.New("cardvault: the network of the token is not configured")
	}
	if l.ref.ID != "" {
		err := v.ask(ctx, func(ctx context.Context) error { return v.opts.Network.Delete(ctx, l.ref) })
		l.done = err == nil
		return true, err
	}
	got, err := v.callLookup(ctx, l.ref, "")
	var e *network.Error
	switch {
	case errors.Is(err, network.ErrUnknown), errors.As(err, &e) && isFinal(e):
		return false, nil
	case err != nil:
		return false, err
	}
	l.ref.ID = got.ID
	return true, nil
}
