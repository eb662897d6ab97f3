package cardvault

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cardvault/cardvault/internal/jobs"
	"github.com/cardvault/cardvault/internal/leak"
	"github.com/cardvault/cardvault/internal/outbox"
	"github.com/cardvault/cardvault/internal/removal"
	"github.com/cardvault/cardvault/internal/spread"
	"github.com/cardvault/cardvault/internal/tlv"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/receive"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// lapsing returns the kinds whose records are erased when they are due. Ids of sessions and
// of browsers' payloads are credentials.
func (v *Vault) lapsing() []removal.Lapsing {
	return []removal.Lapsing{
		{Kind: kindToken, Named: true, Endings: v.endingsOf},
		{Kind: kindAPIKey, Named: true},
		{Kind: kindSession}, {Kind: kindIdempotency}, {Kind: kindAnswer}, {Kind: kindNotice}, {Kind: kindPaymentJWE},
		{Kind: kindSessionKey}, {Kind: kindPayload}, {Kind: kindMistakes}, {Kind: kindEvent}, {Kind: kindSubmission},
	}
}

// workTime limits a job that does its work in pieces.
const workTime = 45 * time.Second

// sweeps returns the background work that is done in batches.
func (v *Vault) sweeps() []jobs.Sweep {
	all := append(v.outbox.Sweeps(), v.eraser.Sweep())
	if v.audit != nil {
		all = append(all, v.audit.Sweep())
	}
	return all
}

// kinds returns the background work that is done job by job: this table is the one place
// that a new sort of work touches, besides its own file.
func (v *Vault) kinds() []jobs.Kind {
	calls := 3*v.opts.NetworkTimeout + 5*time.Second // three calls to the network, and some writes
	workers := func(n int, can bool) int {
		if !can {
			return 0
		}
		return n
	}
	wired := v.opts.Network != nil
	own := []jobs.Kind{
		v.eraser.Kind(),
		{Records: kindSpread, Workers: 4, Longest: workTime, Do: job(v, spread.Decode, (*Vault).spreadOn)},
		{Records: kindNetworkToken, Workers: workers(64, wired), Longest: calls, Leases: kindLease, Claim: v.claimNetworkToken, Do: v.advanceNetworkToken},
		{Records: kindRelease, Workers: workers(16, wired), Longest: calls, Claim: v.claimRelease, Do: job(v, decodeRelease, (*Vault).releaseNow)},
		{Records: kindBackfill, Workers: workers(4, wired), Longest: calls, Claim: v.claimOfAccount, Do: job(v, decodeBackfill, (*Vault).backfill)},
		{Records: kindRetention, Workers: 4, Longest: workTime, Claim: v.claimOfAccount, Do: job(v, removal.DecodeRetention, (*Vault).retain)},
		v.closer.Kind(),
	}
	return slices.Concat(own, v.renewals.Work(), v.outbox.Kinds(), []jobs.Kind{v.sealer.Kind()})
}

// job returns the Do of a kind: it decodes what the record of a job holds, and does the job
// on a handle of its account.
func job[T any](v *Vault, decode func([]byte) (T, error), do func(*Vault, context.Context, *jobs.Job, T) error) func(context.Context, *jobs.Job) error {
	return func(ctx context.Context, j *jobs.Job) error {
		held, err := decode(j.Plain)
		if err != nil {
			return v.ledger.Named(j.Record, err)
		}
		return do(v.of(j.Record.Account), ctx, j, held)
	}
}

// onlyJob returns a job of a kind of which an account has one, in the place of the former one. It
// is due now, and holds what plain returns for that time.
func (v *Vault) onlyJob(ctx context.Context, kind store.Kind, plain func(time.Time) []byte) (*store.Record, error) {
	r := &store.Record{Kind: kind, ID: v.rows.ID, Account: v.rows.ID, Due: now()}
	err := v.rows.View(ctx, func(tx store.ReadTx) error {
		former, err := tx.Get(kind, r.ID)
		switch {
		case err == nil:
			r.Version = former.Version + 1
		case errors.Is(err, store.ErrNotFound):
			r.Version, err = 1, nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, v.rows.SealShown(r, plain(r.Due))
}

// Run does the background work of the vault until ctx ends: it provisions network tokens
// and keeps them up to date, receives the notices of networks that are a [network.Feeder],
// submits cards to the account updater and receives its outcomes, passes events on, seals
// records of former key terms anew, and erases lapsed records within seconds. It returns nil
// when ctx has ended and running work has finished, after [Options.NetworkTimeout] or so; and
// ErrClosed if the vault is closed first. Failures are logged and tried again. Several
// processes may run on one store.
func (v *Vault) Run(ctx context.Context) (err error) {
	defer v.doing(ctx, "run", &err)
	feeds := []func(context.Context){v.ledger.Follow, v.ledger.FollowSums, watchAge(v)}
	for _, info := range v.opts.powers.Networks() {
		if info.Feeder {
			feeds = append(feeds, v.feed("network", info.Name, func(ctx context.Context) error { return v.feedNotices(ctx, info.Name) }))
		}
	}
	if v.renewals != nil {
		feeds = append(feeds, v.feed("account updater", v.opts.Updater.Info().Name, v.renewals.Feed))
	}
	return v.jobs.Run(ctx, feeds...)
}

// Drain does the background work that is due and returns. It receives no notices and no
// outcomes of the account updater, and tries nothing twice that fails. Call it each minute,
// or the vault warns of overdue work.
//
// Errors: ErrRolledBack, after all other work, if the vault keeps sums of its records and these were
// put back as they were before: see [Vault.BeginSums].
func (v *Vault) Drain(ctx context.Context) (err error) {
	defer v.doing(ctx, "drain", &err)
	v.ledger.Look(ctx)
	return errors.Join(v.jobs.Drain(ctx), v.uses.Flush(ctx), v.ledger.FoldSums(ctx))
}

// feedNotices receives the notices of a network until ctx ends.
func (v *Vault) feedNotices(ctx context.Context, name string) error {
	return v.opts.powers.Feeder.Feed(ctx, &network.FeedRequest{Network: name}, func(ctx context.Context, n *network.Notice) error {
		switch {
		case n == nil:
			return required("Notice")
		case n.Token.Network != "" && n.Token.Network != name:
			v.log.Error("a notice names a network other than its own and is dropped", "network", name)
			return nil
		}
		return v.Notify(ctx, bound(n, name))
	})
}

// feed returns a function that receives the news of an adapter until its context ends.
func (c *core) feed(who, name string, receives func(context.Context) error) func(context.Context) {
	return jobs.Restarted(func(ctx context.Context) error {
		return c.guard(who, func() error { return receives(ctx) })
	}, func(err error) {
		c.log.Error("feed failed and will be restarted", "of", who, "name", name, "error", leak.Printable(err))
	})
}

// claimNetworkToken puts a job off while the rate limit allows no call for its scheme.
func (v *Vault) claimNetworkToken(ctx context.Context, j *jobs.Job) error {
	n, err := decodeNetworkToken(j.Plain)
	if err != nil {
		return err
	}
	v, r, at := v.of(j.Record.Account), j.Record, now()

	wait, err := v.rests(ctx)
	if err != nil {
		return err
	}

	// A place that was missed is lost: what waited for a process to come back
	// does not go to the network all at once.
	n.slot = n.slot && j.Was.After(at.Add(-jobs.Missed))
	if wait == 0 {
		wait = v.slot(n, at)
	}
	if wait == 0 {
		return nil
	}
	r.Due, j.Wait = at.Add(wait), true
	n.unsure = n.unsure || j.Doubtful && n.id == "" // it is not seen from the later time
	r.Lookup = v.networkLookups(v.rows.Mask(kindToken, r.ID), n)
	j.Plain = tlv.Pad(n.encode(nil), 64, 0)
	return nil
}

// advanceNetworkToken provisions the network token of a job, or looks how it is.
func (v *Vault) advanceNetworkToken(ctx context.Context, j *jobs.Job) error {
	v = v.of(j.Record.Account)
	h, err := v.hold(ctx, j.Record.ID)
	switch {
	case errors.Is(err, ErrNotFound):
		return jobs.ErrLeft
	case err != nil:
		return err
	case h.record == nil || h.record.Version != j.Record.Version:
		return nil // it has changed since it was listed
	}

	c := &networkCall{vault: v, job: j, asked: h, news: h.net.news}
	name := v.opts.powers.For(h.token.Scheme)
	switch {
	case c.untried() && (name == "" || name == h.net.network):
		return c.provision(ctx)
	case c.untried() || !v.opts.powers.Has(h.net.network):
		return c.postpone(ctx)
	case h.token.NetworkTokenStatus == network.Pending && h.net.id == "":
		return c.provision(ctx)
	}
	return c.lookup(ctx)
}

// claimRelease drops a release if a token holds the network token by now.
func (v *Vault) claimRelease(ctx context.Context, j *jobs.Job) error {
	l, err := decodeRelease(j.Plain)
	if err != nil || l.ref.ID == "" {
		return err
	}
	hash := v.networkHash(l.network, l.ref.ID)
	holder, err := v.holder(ctx, hash, uuid.Nil)
	j.Confirm = func(tx store.ReadTx) (jobs.Verdict, error) {
		switch withdrawn, err := v.heldStill(tx, hash, holder); {
		case errors.Is(err, errChanged):
			return jobs.Leave, nil
		case withdrawn:
			return jobs.Drop, err
		default:
			return jobs.Take, err
		}
	}
	return err
}

// endingsOf returns the events of tokens that lapse.
func (v *Vault) endingsOf(ctx context.Context, due []*store.Record) (removal.Endings, error) {
	parcels := make([]*outbox.Parcel, len(due))
	for i, r := range due {
		p, err := v.of(r.Account).newEvent(ctx, r, nil, receive.TokenDeleted, receive.ReasonExpired)
		if errors.Is(err, ErrDamaged) || errors.Is(err, ErrNotFound) { // lapsed records are erased all the same
			v.log.Error("the expiry of a token has no event", "account", r.Account, "error", err)
			p, err = nil, nil
		}
		if err != nil {
			return nil, err
		}
		parcels[i] = p
	}
	return v.outbox.Bundle(parcels), nil
}
