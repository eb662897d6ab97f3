package cardvault

import (
	"context"
	"hash/maphash"
	"log/slog"
	"time"

	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/internal/tally"
	"github.com/google/uuid"
)

// A Suspicion reports a possible attempt to guess card numbers: more different numbers with
// the same masked form were passed in than [ErrTooManyNumbers] allows.
type Suspicion struct {
	At      time.Time
	Account uuid.UUID
	Actor   Actor // of the call that was refused

	// What the numbers have in common.
	IIN                 string
	LastFour            string
	AccountNumberLength int

	Limit int // different numbers that this vault takes in a UTC day
}

// guesses counts the card numbers that callers pass in.
type guesses struct {
	tally   tally.Tally
	reports tally.Reports
	seed    maphash.Seed // of the hashes of masked numbers, which show nothing secret
}

// takeNumber counts a card number, which has the fingerprint f, under its mask, before any
// answer or act that depends on the number. A number that was counted on that day passes.
// It returns ErrTooManyNumbers for one too many, and for all with its mask from then on.
func (v *Vault) takeNumber(ctx context.Context, p card.PAN, f Fingerprint) error {
	digits, at := hiding.Of(p), now()
	shown := shownIIN(digits, v.opts.IINLength)
	limit := tally.NumbersADay(len(digits)-shown-4, !v.opts.AllowNonLuhn, v.opts.Replicas)

	var shape [16 + maxPAN]byte // account, and the digits that show
	copy(shape[:], v.rows.ID[:])
	copy(shape[16:], digits[:shown])
	copy(shape[16+len(digits)-4:], digits[len(digits)-4:])
	key := maphash.Bytes(v.guesses.seed, shape[:16+len(digits)])

	day := at.Unix() / (24 * 60 * 60)
	if v.guesses.tally.Take(day, v.rows.ID, key, [16]byte(f[:16]), limit) {
		return nil
	}
	v.suspect(ctx, day, key, Suspicion{
		At:                  at,
		Account:             v.rows.ID,
		IIN:                 string(digits[:shown]),
		LastFour:            string(digits[len(digits)-4:]),
		AccountNumberLength: len(digits),
		Limit:               limit,
	})
	return ErrTooManyNumbers
}

// suspect reports a suspicion: of each masked number once a day.
func (v *Vault) suspect(ctx context.Context, day int64, shape uint64, s Suspicion) {
	ok, last := v.guesses.reports.Take(day, s.Account, shape)
	if !ok {
		return
	}

	s.Actor, _ = ctx.Value(actorKey{}).(Actor)
	// Not the last four digits: logs go further than tokens do.
	v.log.LogAttrs(ctx, slog.LevelWarn, "card numbers are being guessed: too many different ones with the same mask",
		slog.Any("account", s.Account),
		slog.String("iin", s.IIN),
		slog.Int("limit", s.Limit),
		s.Actor.log(),
		slog.Bool("last_of_day", last))
	if v.opts.OnSuspicion != nil {
		_ = v.guard("Options.OnSuspicion", func() error { v.opts.OnSuspicion(ctx, s); return nil }) // logged
	}
}
