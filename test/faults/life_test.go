package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/simnet"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
	"github.com/google/uuid"
)

// Orders say what another process of the tests does with a vault: the operations of Script,
// or Random ones of several workers. It works until it is killed or has done them.
type orders struct {
	Dir     string   // of the vault, its backup and its restored twin
	Log     string   // takes the acknowledged operations
	History string   // the log of former processes; empty: none
	Sim     string   // the simulated network, which loses nothing
	Script  []string `json:",omitempty"`
	Random  int      `json:",omitempty"` // operations of each worker
	Workers int
	Seed    uint64
	Faulty  bool // the disk fails: operations may too, and are gone on with

	Unreadable bool // reads fail: the records look damaged
}

const ordersVariable = "CARDVAULT_ORDERS"

// obeyed does the orders for which this process was started, if it was.
func obeyed(t *testing.T) bool {
	text, ok := os.LookupEnv(ordersVariable)
	if !ok {
		return false
	}
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { live(t, &o) })
	return true
}

// A life is a process that works on a vault.
type life struct {
	*testing.T
	*orders
	v     *cardvault.Vault
	store *boltstore.Store
	log   *os.File
	text  *bytes.Buffer // of the logger
	home  uuid.UUID     // the account in which the workers work

	sim      *simnet.Network
	anchor   *anchors
	manifest []byte       // of the backup of this process
	rest     func() error // ends Run, and closes the vault and its store

	mu    sync.Mutex
	known *known
}

func live(t *testing.T, o *orders) {
	l := &life{T: t, orders: o, known: newKnown(), text: new(bytes.Buffer)}
	if o.History != "" {
		l.known = history(t, o.History)
	}
	time.Sleep(time.Until(l.known.last) + time.Second) // the time of the bubble begins anew with each process
	var err error
	if l.log, err = os.OpenFile(o.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		t.Fatal(err)
	}
	defer l.log.Close()

	sim, err := simnet.Open(t.Context(), o.Sim, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sim.Close()
	folder := filepath.Join(l.Dir, anchorName)
	if err = os.Mkdir(folder, 0o700); err == nil || errors.Is(err, os.ErrExist) {
		err = syncFolder(l.Dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.sim, l.anchor = sim, &anchors{Anchor: cardvault.AnchorDir(folder), advanced: func(text []byte) {
		l.write(line{Op: "anchor", State: anchored, Anchor: string(text)})
	}}
	l.open()
	l.paid()
	l.run()

	var workers sync.WaitGroup
	for n := range max(1, o.Workers) {
		w := &worker{life: l, n: n, random: rand.New(rand.NewPCG(o.Seed, uint64(n)))}
		workers.Go(w.work)
	}
	workers.Wait()

	if err := l.rest(); err != nil && !o.Faulty {
		t.Errorf("close: %v", err)
	}
}

// run begins the background work of the vault.
func (l *life) run() {
	running, stop := context.WithCancel(l.Context())
	v, s := l.v, l.store
	var work sync.WaitGroup
	work.Go(func() {
		if err := v.Run(running); err != nil && !errors.Is(err, cardvault.ErrMoved) && !l.Faulty {
			l.Errorf("Run: %v", err)
		}
	})
	l.rest = func() error {
		stop()
		work.Wait()
		return errors.Join(v.Close(), s.Close())
	}
}

// Anchors are an anchor on the disk of the vault, and a twin on another disk, which loses nothing:
// the log.
type anchors struct {
	cardvault.Anchor
	advanced func(text []byte)
	texts    atomic.Int64
}

func (a *anchors) Advance(ctx context.Context, number uint64, text []byte) error {
	err := a.Anchor.Advance(ctx, number, text)
	if err == nil {
		a.texts.Add(1)
		a.advanced(text)
	}
	return err
}

// An apart is an anchor on another disk.
type apart struct{ text []byte }

func (a *apart) Load(context.Context) ([]byte, error) { return a.text, nil }

func (a *apart) Advance(_ context.Context, _ uint64, text []byte) error {
	a.text = text
	return nil
}

// history reads the log of former processes.
func history(t *testing.T, path string) *known {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	k := newKnown()
	for text := range strings.Lines(string(text)) {
		k.take(parseLine(text))
	}
	k.died()
	return k
}

// open opens the vault, again if the disk fails.
func (l *life) open() {
	ctx := l.Context()
	l.write(line{Op: "open", State: begun})
	for attempt := 0; ; attempt++ {
		s, err := l.openStore("vault")
		if err == nil {
			l.store = s
			if l.v, err = cardvault.New(ctx, s, keyring(l.T, l.known.keys()...), vaultOptions(l.sim, l.anchor)); err == nil {
				var home *cardvault.Account
				if home, err = l.v.Account(ctx); err == nil {
					l.home = home.ID
					break
				}
				err = errors.Join(err, l.v.Close())
			}
			err = errors.Join(err, s.Close())
		}
		if !l.Faulty || attempt == 100 {
			l.Fatalf("open: %v", err)
		}
		time.Sleep(time.Minute)
	}
	made := facts{name("account", l.home): {Text: "open"}, "key": {Text: strconv.Itoa(l.known.keys()[0])}}
	if l.known.acked == 0 {
		made["terms"] = fact{Text: "1"}
	}
	l.write(line{Op: "open", State: done, Facts: made})
}

// paid gives the account a secret for payment data, unless it has one.
func (l *life) paid() {
	merchant, err := l.v.PrimaryMerchant(l.Context())
	if err == nil && len(merchant.Secrets) == 0 {
		_, err = l.v.RotatePaymentSecret(l.Context(), merchant.ID, nil)
	}
	if err != nil && !l.Faulty {
		l.Fatal(err)
	}
}

func (l *life) openStore(place string) (*boltstore.Store, error) {
	return boltstore.Open(l.Context(), filepath.Join(l.Dir, place, "cardvault.db"), &boltstore.Options{Logger: slog.New(slog.NewTextHandler(l.text, nil))})
}

// keyring returns a keyring of the keys with these numbers.
func keyring(t testing.TB, numbers ...int) *cardvault.Keyring {
	t.Helper()
	var all []*cardvault.Keyring
	for _, n := range numbers {
		key, err := cardvault.KeyBytes(bytes.Repeat([]byte{7 + byte(n)}, cardvault.KeySize))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, key)
	}
	return cardvault.JoinKeyrings(all[0], all[1:]...)
}

// keys returns the numbers of the keys that may wrap the keys of the vault, the last one first.
func (k *known) keys() (numbers []int) {
	for _, f := range append(slices.Clone(k.maybe["key"]), k.facts["key"]) {
		n, _ := strconv.Atoi(f.Text)
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	slices.Reverse(numbers)
	return slices.Compact(numbers)
}

// everyKey returns a keyring for backups of any time.
func (k *known) everyKey(t testing.TB) *cardvault.Keyring {
	last := k.keys()[0]
	var numbers []int
	for n := range min(last+1, 16) {
		numbers = append(numbers, last-n)
	}
	return keyring(t, numbers...)
}

// An outside takes the events of a vault.
type outside struct{}

func (outside) Event(context.Context, *cardvault.Event) error { return nil }

const retention = 30 * 24 * time.Hour

func vaultOptions(sim *simnet.Network, anchor cardvault.Anchor) *cardvault.Options {
	o := &cardvault.Options{
		Mode: cardvault.Sandbox, Events: outside{}, PaymentDataRetention: retention, SessionTTL: time.Hour,
		Audit: &cardvault.AuditOptions{Failure: cardvault.AuditContinue}, Anchor: anchor,
	}
	if sim != nil {
		o.Network = sim
	}
	return o
}

func (l *life) write(what line) {
	if what.At.IsZero() {
		what.At = time.Now()
	}
	text, err := json.Marshal(what)
	if err == nil {
		_, err = l.log.Write(append(text, '\n'))
	}
	if err != nil {
		l.Fatalf("the log: %v", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known.take(what)
}

// A worker does one operation after another.
type worker struct {
	*life
	n      int
	random *rand.Rand
}

func (w *worker) work() {
	for _, op := range w.Script {
		w.do(op)
	}
	for range w.Random {
		names := commonOps
		if w.n == 0 && w.random.IntN(4) == 0 {
			names = rareOps
		}
		w.do(names[w.random.IntN(len(names))])
	}
}

// An attempt is one operation of a worker.
type attempt struct {
	*worker
	line
}

// begin writes that the operation begins, with the facts that may become true.
func (a *attempt) begin(may facts) {
	a.Facts, a.State = may, begun
	a.write(a.line)
}

var ops = map[string]func(*attempt) (facts, error){}

func (w *worker) do(op string) {
	a := &attempt{worker: w, line: line{Worker: w.n, Op: op}}
	made, err := ops[op](a)
	switch {
	case errors.Is(err, errNothing):
		return
	case err == nil:
		a.write(line{Worker: w.n, Op: op, State: done, Facts: made})
		return
	case !w.Faulty && !errors.Is(err, errLater):
		w.Errorf("%s: %v", op, err)
	}

	failed := line{Worker: w.n, Op: op, State: undone, Error: err.Error()}
	switch {
	case errors.Is(err, errLater), errors.Is(err, cardvault.ErrOutcomeUnknown), slices.Contains(severalSteps, op):
		failed.State = unknown
	case w.Unreadable && errors.Is(err, cardvault.ErrDamaged):
	case !errors.Is(err, cardvault.ErrUnavailable) && !errors.Is(err, cardvault.ErrStorageFull):
		w.Errorf("%s: an error that is not documented: %v", op, err)
	}
	a.write(failed)
	a.pass(time.Minute)
}

// pass lets time pass, in which the vault works in the background.
func (a *attempt) pass(d time.Duration) {
	a.write(line{At: time.Now().Add(d), Worker: a.n, Op: a.Op, State: passes})
	time.Sleep(d)
}

var (
	errNothing = errors.New("nothing to do")                // there was nothing to work on, and nothing was begun
	errLater   = errors.New("done later in the background") // at an unknown time
)

// pick returns the ids of a fact of this worker, of a kind and with a text that has a beginning.
func (w *worker) pick(kind, text string) (ids []uuid.UUID, f fact) {
	within := name(kind, w.home) + "/"
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []string
	for at, f := range w.known.facts {
		parts := strings.Split(at, "/")
		if !strings.HasPrefix(at, within) || len(f.Text) == 0 || !strings.HasPrefix(f.Text, text) || len(w.known.maybe[at]) > 0 {
			continue
		}
		if !f.Until.IsZero() && time.Until(f.Until) < 10*time.Minute {
			continue
		}
		id, err := uuid.Parse(parts[2])
		if err != nil || int(id[15])%max(1, w.Workers) != w.n || slices.ContainsFunc(parts[2:], func(id string) bool { return w.busy(id) }) {
			continue
		}
		found = append(found, at)
	}
	if len(found) == 0 {
		return nil, fact{}
	}
	slices.Sort(found)
	at := found[w.random.IntN(len(found))]
	for _, id := range strings.Split(at, "/")[1:] {
		ids = append(ids, uuid.MustParse(id))
	}
	return ids, w.known.facts[at]
}

// busy reports whether an operation without an outcome is about an id. w.mu must be held.
func (w *worker) busy(id string) bool {
	for name := range w.known.maybe {
		if strings.Contains(name, id) {
			return true
		}
	}
	return false
}

// number returns the number of a card that gets a network token at once.
func (w *worker) number() (digits string) {
	numbers := []string{"4111110000000005", "5555550000000002", "6011110000000001"}
	return numbers[w.random.IntN(len(numbers))]
}

func (w *worker) card() cardvault.Card { return cardOf(w.number()) }

func cardOf(number string) cardvault.Card {
	return cardvault.Card{
		PAN:    card.NewPAN([]byte(number)),
		Expiry: card.Expiry{Month: 12, Year: 2040},
		Name:   card.NewName([]byte("A Customer")),
	}
}

func (w *worker) order() string { return "order " + strconv.FormatUint(w.random.Uint64(), 36) }

// gone returns the facts that the end of a token makes.
func (w *worker) gone(account, token uuid.UUID) facts {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := facts{"token/" + account.String() + "/" + token.String(): {}}
	for name, kept := range w.known.facts {
		if strings.HasPrefix(name, "payment/"+account.String()+"/"+token.String()) && kept.Text != "" {
			f[name] = fact{}
		}
	}
	return f
}

func name(kind string, ids ...uuid.UUID) string {
	for _, id := range ids {
		kind += "/" + id.String()
	}
	return kind
}

// Fillers are records beside the records of the vault, to make the file large.
const (
	fillerKind = 250
	fillerName = "kind 250"
)

// fill makes the file so large and so empty that the store compacts it.
func (l *life) fill(ctx context.Context) error {
	path := filepath.Join(l.Dir, "vault", "cardvault.db")
	var ids []uuid.UUID
	put := func(id uuid.UUID, size int) error {
		return l.store.Update(ctx, func(tx store.Tx) error {
			tx.Put(&store.Record{Kind: fillerKind, ID: id, Version: 1, Shown: make([]byte, size)})
			return nil
		})
	}
	remove := func(id uuid.UUID) error {
		return l.store.Update(ctx, func(tx store.Tx) error { tx.Delete(fillerKind, id); return nil })
	}
	for n := range 80 {
		id := uuid.UUID{0: byte(n), 15: 1}
		if err := put(id, 60<<10); err != nil {
			return err
		}
		ids = append(ids, id)
	}
	for _, id := range ids {
		if err := remove(id); err != nil {
			return err
		}
	}
	before, err := os.Stat(path)
	if err != nil {
		return err
	}
	for range 400 {
		id := uuid.UUID{15: 2}
		if err := errors.Join(put(id, 10), remove(id)); err != nil {
			return err
		}
		time.Sleep(time.Minute)
		after, err := os.Stat(path)
		if err != nil {
			return err
		}
		if after.Size() < before.Size() {
			return nil
		}
	}
	return fmt.Errorf("the file was not compacted: %d bytes\n%s", before.Size(), l.text)
}
