package vaultsuite

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/iin"
	"github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/updater"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

// A veiled number is a card number that is in memory in another form, so that a search of the
// memory of this process finds copies of it and not the needle.
type veiled []byte

// veil changes every byte of a veiled number.
const veil = 0xa5

// newVeiled returns a number that nothing else has.
func newVeiled() veiled {
	digits := make([]byte, 15, 16)
	_, _ = rand.Read(digits) // never fails
	for i := range digits {
		digits[i] = '0' + digits[i]%10
	}
	digits[0] = '4'
	digits = append(digits, iin.CheckDigit(digits))
	v := make(veiled, len(digits))
	subtle.XORBytes(v, digits, bytes.Repeat([]byte{veil}, len(digits)))
	clear(digits)
	return v
}

// expose calls f with the digits.
func (v veiled) expose(f func(digits []byte)) {
	digits := make([]byte, len(v))
	subtle.XORBytes(digits, v, bytes.Repeat([]byte{veil}, len(v)))
	defer clear(digits)
	f(digits)
}

// with calls f with a card of the number, and wipes it.
func (v veiled) with(f func(cardvault.Card)) {
	c := cardvault.Card{Expiry: card.Expiry{Month: 12, Year: 2090}}
	v.expose(func(digits []byte) { c.PAN = card.NewPAN(digits) })
	defer c.PAN.Wipe()
	f(c)
}

// inMemory reports which numbers are in the memory of this process.
func inMemory(t testing.TB, numbers []veiled) []bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	noError(t, err)
	memory, err := os.Open("/proc/self/mem")
	noError(t, err)
	defer memory.Close()

	found := make([]bool, len(numbers))
	const size, overlap = 256 << 10, 32
	buf, mask := make([]byte, size), bytes.Repeat([]byte{veil}, size)
	defer clear(buf) // it has veiled numbers unveiled, and so is not searched
	own := int64(reflect.ValueOf(buf).Pointer())
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		var from, to int64
		var access string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &access); err != nil {
			continue // [vsyscall] is beyond int64
		}
		if access[0] != 'r' || strings.Contains(lines.Text(), "[vvar") || to-from > 1<<36 {
			continue // the last are the tables of the race detector
		}
		for kept := 0; from < to; {
			until := to
			switch {
			case from >= own && from < own+size:
				from, kept = own+size, 0
				continue
			case from < own:
				until = min(to, own)
			}
			n, err := memory.ReadAt(buf[kept:kept+int(min(int64(size-kept), until-from))], from)
			if n == 0 && err != nil { // pages that are not there
				page := int64(os.Getpagesize())
				from, kept = (from/page+1)*page, 0
				continue
			}
			from += int64(n)
			part := buf[:kept+n]
			subtle.XORBytes(part[kept:], part[kept:], mask)
			for i, number := range numbers {
				found[i] = found[i] || bytes.Contains(part, number)
			}
			kept = copy(buf, part[max(0, len(part)-overlap):])
		}
	}
	return found
}

// A discreetUpdater reports each call, and keeps references alone.
type discreetUpdater struct {
	*office
	mu         sync.Mutex
	references []string
}

func (u *discreetUpdater) Submit(_ context.Context, r *updater.SubmitRequest) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range r.Cards {
		u.references = append(u.references, c.Reference)
	}
	return nil
}

// A plainWrapper leaves keys as they are.
type plainWrapper struct{}

func (plainWrapper) KeyID() string                                       { return "plain" }
func (plainWrapper) Wrap(_ context.Context, b, _ []byte) ([]byte, error) { return bytes.Clone(b), nil }
func (plainWrapper) Unwrap(_ context.Context, b, _ []byte) ([]byte, error) {
	return bytes.Clone(b), nil
}

// openedRows returns the parts of all records of a vault, opened.
func openedRows(t testing.TB, s store.Store) (plain []byte) {
	t.Helper()
	l := ledger.New(ledger.Config{
		Store: s, Ring: ledger.Ring{{Wrapper: plainWrapper{}}}, Mode: uint8(cardvault.Sandbox),
		ModeName: func(uint8) string { return "sandbox" },
		Log:      slog.New(slog.DiscardHandler),
		Wrote:    func(context.Context, ledger.Operation, uuid.UUID, uuid.UUID, error) {},
		Mistrust: func(answer string) { t.Error("the store returned", answer) },
	})
	noError(t, l.Load(t.Context(), nil))

	for k, r := range rowsOf(t, s) {
		if len(r.Secret) > 0 {
			secret, err := l.In(r.Account).CopySecret(t.Context(), r)
			if err != nil {
				t.Errorf("the secret part of a record of kind %d: %v", k.Kind, err)
			}
			plain = append(append(plain, secret...), '\n')
		}
		if len(r.Shown) > 0 {
			shown, err := l.OpenShown(t.Context(), r)
			if err != nil {
				t.Errorf("the shown part of a record of kind %d: %v", k.Kind, err)
			}
			plain = append(append(plain, shown...), '\n')
		}
	}
	return plain
}

// An absence is the search for the numbers that a vault has had.
type absence struct {
	*testing.T
	*cardvault.Vault
	updater *discreetUpdater
	numbers []veiled
	present map[uuid.UUID]int // of each token, the number that it has
	texts   []string          // that callers have received
}

// replaceAbsence: a number that was replaced is nowhere any more: not in the memory of the
// process, not in a record, even when it is opened, and in no log, event, answer, error or audit
// record. The present number is in its record, sealed, and not in memory either.
func replaceAbsence(t *testing.T, s store.Store) {
	log, sink := new(logged), new(vaulttest.Recorder)
	u := &discreetUpdater{office: newOffice()}
	v, err := cardvault.New(t.Context(), s, cardvault.WrappedBy(plainWrapper{}), &cardvault.Options{
		Mode: cardvault.Sandbox, Network: new(clerk), Updater: u, Events: sink, Purposes: []string{purpose},
		Audit:  &cardvault.AuditOptions{Reads: true},
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	noError(t, err)
	t.Cleanup(func() { noError(t, v.Close()) })

	a := &absence{T: t, Vault: v, updater: u, present: map[uuid.UUID]int{}}
	a.replace()
	if runtime.GOOS == "linux" {
		a.searchMemory()
	}

	secrets := make([]string, len(a.numbers))
	for i, number := range a.numbers {
		number.expose(func(digits []byte) { secrets[i] = string(digits) })
	}
	for _, e := range sink.Events() {
		a.texts = append(a.texts, fmt.Sprintf("%+v %+v", e, e.Token))
	}
	vaulttest.AssertNoLeak(t, secrets, log.String(), strings.Join(a.texts, "\n"))

	plain := openedRows(t, s)
	for _, i := range a.present {
		if !bytes.Contains(plain, []byte(secrets[i])) {
			t.Error("a present number is in no record that was opened: the search proves nothing")
		}
		secrets[i] = canary + "present" // which nothing has
	}
	vaulttest.AssertNoLeak(t, secrets, plain)
}

// next calls f with a card of a new number.
func (a *absence) next(f func(cardvault.Card)) {
	a.numbers = append(a.numbers, newVeiled())
	a.numbers[len(a.numbers)-1].with(f)
}

// answered notes the answer of a call that has given a token the last number, and uses its card
// in several ways.
func (a *absence) answered(token *cardvault.Token, err error) {
	a.Helper()
	noError(a, err)
	a.present[token.ID] = len(a.numbers) - 1
	a.texts = append(a.texts, fmt.Sprintf("%+v", token))
	drain(a, a.Vault)
	noError(a, a.Use(a.Context(), token.ID, purpose, func(context.Context, *cardvault.UsedCard) error { return nil }))
	pay(a, a.Vault, token)
}

// replace replaces the cards of tokens in every way.
func (a *absence) replace() {
	ctx := a.Context()
	newSecret(a, a.Vault)
	key := func() string { return uuid.NewString() }
	var tokens []*cardvault.Token
	for range absenceTokens { // all before the first submission
		a.next(func(c cardvault.Card) {
			tokens = append(tokens, must(a.Import(ctx, c, &cardvault.ImportOptions{IdempotencyKey: key()}))(a))
		})
	}
	for _, token := range tokens {
		a.answered(token, nil)
	}

	stop := runs(a, a.Vault)
	for _, reference := range a.updater.references {
		a.next(func(c cardvault.Card) {
			a.updater.tells(a, "updated", &updater.Outcome{ID: canary, Reference: reference, Kind: updater.Updated, PAN: c.PAN, Expiry: renewedTo})
		})
	}
	stop()

	for _, token := range tokens {
		if a.answered(a.Get(ctx, token.ID)); must(a.Get(ctx, token.ID))(a).Expiry != renewedTo {
			a.Fatal("the account updater has not replaced a card")
		}
		a.next(func(c cardvault.Card) {
			c.Expiry.Month = 13
			_, err := a.Replace(ctx, token.ID, c, nil)
			refuses(a, "a card that cannot be", err, "Expiry.Month out_of_range")
			a.texts = append(a.texts, err.Error())
		})
		a.next(func(c cardvault.Card) {
			fails(a, "an unknown token", errorOf(a.Replace(ctx, uuid.New(), c, nil)), cardvault.ErrNotFound)
		})
		session := must(a.ReplaceSession(ctx, token.ID, nil))(a)
		a.next(func(c cardvault.Card) { a.answered(a.Tokenize(ctx, session.ID, c)) })
		a.next(func(c cardvault.Card) {
			a.answered(a.Replace(ctx, token.ID, c, &cardvault.CallOptions{IdempotencyKey: key()}))
		})
	}
}

// A number may be where a thread that sleeps has left it. Numbers that are kept are as many as
// the tokens: each way of replacing a card is used for every one.
const absenceTokens, strayNumbers = 3, 1

// searchMemory searches the memory of this process for the numbers, and for a number that is there.
func (a *absence) searchMemory() {
	var kept []byte
	mark := newVeiled()
	mark.expose(func(digits []byte) { kept = bytes.Clone(digits) })
	many := len(a.numbers)

	left := slices.Repeat([]bool{true}, many) // found each time
	for range 5 {                             // a register that was saved at a wrong moment is overwritten by more work
		runtime.GC()
		runtime.GC() // what sync.Pool holds outlives one
		found := inMemory(a, append(a.numbers[:many:many], mark))
		if !found[many] {
			a.Error("the search does not find a number that is in memory")
		}
		for i := range left {
			left[i] = left[i] && found[i]
		}
		if !slices.Contains(left, true) {
			break
		}
		importCard(a, a.Vault, testCard(1), nil)
		drain(a, a.Vault)
	}

	var strays []int
	for i, is := range left {
		if is {
			strays = append(strays, i+1)
		}
	}
	if len(strays) > strayNumbers {
		a.Errorf("of %d numbers, these are in memory: %v", many, strays)
	}
	runtime.KeepAlive(kept)
}
