package cardvault_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/internal/bubble"
	inside "github.com/cardvault/cardvault/internal/ledger"
	"github.com/cardvault/cardvault/network"
	"github.com/cardvault/cardvault/store"
	"github.com/cardvault/cardvault/store/boltstore"
)

// A furnished vault is a closed one, on bbolt, with records of most kinds, and what calls answer that
// read each of them.
type furnished struct {
	t         *testing.T
	dir       string
	opts      cardvault.Options
	file, old []byte // the file, and as it was some changes before

	questions []question
	right     []string
	records   map[store.Key]*store.Record
}

// A question reads a record, a list, or what a hash leads to.
type question struct {
	name string
	ask  func(context.Context, *cardvault.Vault) (any, error)
}

func (f *furnished) open() (*cardvault.Vault, error) {
	return cardvault.Open(f.t.Context(), f.dir, mustKeyBytes(f.t, make([]byte, cardvault.KeySize)), &f.opts)
}

func (f *furnished) path() string { return filepath.Join(f.dir, "cardvault.db") }

// read closes a vault, and returns its file.
func (f *furnished) read(v *cardvault.Vault) []byte {
	f.t.Helper()
	f.must(v.Close())
	file, err := os.ReadFile(f.path())
	f.must(err)
	return file
}

func (f *furnished) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// ask adds a question that reads in one account; zero is the default account.
func (f *furnished) ask(account uuid.UUID, name string, ask func(context.Context, *cardvault.Vault) (any, error)) {
	f.questions = append(f.questions, question{name, func(ctx context.Context, v *cardvault.Vault) (any, error) {
		if account != uuid.Nil {
			v = v.In(account)
		}
		return ask(ctx, v)
	}})
}

const furnishedTokens = 80 // of the account that has most

// furnish makes the vault, and copies its file twice.
func furnish(t *testing.T) *furnished {
	t.Helper()
	f := &furnished{t: t, dir: filepath.Join(t.TempDir(), "vault")}
	net := &scripted{images: map[string][]byte{"gold": png(3000)}, like: network.Token{Art: "gold"}}
	f.opts = cardvault.Options{
		Mode: cardvault.Sandbox, Network: tillNetwork{net, new(till)}, Webhooks: &post{t: t}, Purposes: []string{"test"},
		BaseURL: "https://vault.example", Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	audited := f.opts
	audited.Audit = new(cardvault.AuditOptions)
	v, err := cardvault.Open(t.Context(), f.dir, mustKeyBytes(t, make([]byte, cardvault.KeySize)), &audited)
	f.must(err)
	f.must(v.BeginSums(t.Context(), nil))
	account, err := v.CreateAccount(t.Context(), "second", &cardvault.AccountOptions{NetworkTokensActive: new(true)})
	f.must(err)

	f.manage(v, uuid.Nil)
	f.manage(v.In(account.ID), account.ID)
	first := f.tokens(v.In(account.ID), account.ID, furnishedTokens/2)
	f.tokens(v, uuid.Nil, 20)
	f.must(v.Drain(t.Context()))
	f.old = f.read(v)

	time.Sleep(time.Minute)
	v, err = cardvault.Open(t.Context(), f.dir, mustKeyBytes(t, make([]byte, cardvault.KeySize)), &audited)
	f.must(err)
	second := v.In(account.ID)
	tokens := append(first, f.tokens(second, account.ID, furnishedTokens/2)...)
	for range 2 {
		f.must(v.Drain(t.Context()))
		time.Sleep(time.Minute)
	}
	f.pay(second, account.ID, tokens[1], tokens[furnishedTokens-1])
	for i, id := range tokens {
		switch i % 10 {
		case 7:
			f.must(second.Delete(t.Context(), id))
		case 8:
			_, err := second.Update(t.Context(), id, cardvault.TokenUpdate{Expiry: &card.Expiry{Month: 5, Year: 2031}})
			f.must(err)
		}
	}
	f.must(v.Drain(t.Context()))
	f.file = f.read(v)

	v, err = f.open()
	f.must(err)
	for _, q := range f.questions {
		text, _ := answer(q, v) // some tokens were deleted
		f.right = append(f.right, text)
	}
	report, err := v.Verify(t.Context(), nil)
	if err != nil || len(report.Problems) > 0 || !report.Sums {
		t.Fatalf("the vault is damaged before: %v, %s, sums: %t", err, counts(report.Problems), report.Sums)
	}
	f.must(v.Close())
	f.records, err = f.stored()
	f.must(err)
	return f
}

// stored returns what the file has, but for what each opening and each question writes.
func (f *furnished) stored() (all map[store.Key]*store.Record, err error) {
	f.t.Helper()
	s, err := boltstore.Open(f.t.Context(), f.path(), nil)
	if err != nil {
		return nil, err
	}
	all = map[store.Key]*store.Record{}
	for _, r := range recordsOf(f.t, s) {
		const kindUse store.Kind = 39 // of API keys
		if r.Kind != kindMeta && r.Kind != kindUse && !inside.OfSums(r.Kind) {
			all[store.Key{Kind: r.Kind, ID: r.ID}] = r
		}
	}
	return all, s.Close()
}

// answer returns what a question is answered, as text, and whether the answer says that data is damaged.
func answer(q question, v *cardvault.Vault) (text string, told bool) {
	got, err := q.ask(context.Background(), v)
	if err != nil {
		return fmt.Sprintf("error %v", err), tellsDamage(err)
	}
	b, err := json.Marshal(got)
	if err != nil {
		b = fmt.Append(nil, err)
	}
	return string(b), false
}

// manage makes what belongs to an account beside tokens.
func (f *furnished) manage(v *cardvault.Vault, account uuid.UUID) {
	ctx := f.t.Context()
	f.ask(account, "account", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.Account(ctx) })
	f.ask(account, "accounts", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.ListAccounts(ctx, nil) })
	primary, err := v.PrimaryMerchant(ctx)
	f.must(err)
	_, err = v.RotatePaymentSecret(ctx, primary.ID, nil)
	f.must(err)
	f.ask(account, "primary merchant", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.PrimaryMerchant(ctx) })
	for n := range 3 {
		key, err := v.CreateAPIKey(ctx, "key", []cardvault.Scope{cardvault.ScopeTokensRead}, &cardvault.APIKeyOptions{TTL: cardvault.MaxAPIKeyTTL})
		f.must(err)
		merchant, err := v.CreateMerchant(ctx, fmt.Sprint("shop ", n), nil)
		f.must(err)
		session, err := v.CreateSession(ctx, &cardvault.SessionOptions{BusinessKey: "of a session"})
		f.must(err)
		f.ask(account, "API key", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.APIKey(ctx, key.ID) })
		f.ask(account, "text of API key", func(ctx context.Context, v *cardvault.Vault) (any, error) {
			return v.Authenticate(ctx, key.Text.Text())
		})
		f.ask(account, "merchant", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.Merchant(ctx, merchant.ID) })
		f.ask(account, "session", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.SessionStatus(ctx, session.ID) })
	}
	hook, err := v.CreateWebhook(ctx, url, nil)
	f.must(err)
	f.ask(account, "webhook", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.Webhook(ctx, hook.ID) })
	f.ask(account, "deliveries", func(ctx context.Context, v *cardvault.Vault) (any, error) {
		return v.ListDeliveries(ctx, hook.ID, &cardvault.ListOptions{Limit: cardvault.MaxLimit})
	})
	f.ask(account, "API keys", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.ListAPIKeys(ctx, nil) })
	f.ask(account, "merchants", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.ListMerchants(ctx, nil) })
	f.ask(account, "webhooks", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.ListWebhooks(ctx, nil) })
	for _, o := range []*cardvault.TokenListOptions{
		{Limit: cardvault.MaxLimit}, {Limit: 20, Page: 2, Ascending: true}, {Scheme: []card.Scheme{card.VISA}, Limit: cardvault.MaxLimit},
	} {
		f.ask(account, "tokens", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.List(ctx, o) })
	}
}

// tokens imports cards.
func (f *furnished) tokens(v *cardvault.Vault, account uuid.UUID, n int) (ids []uuid.UUID) {
	for i := range n {
		o := new(cardvault.ImportOptions)
		if i%3 == 0 {
			o.BusinessKey = fmt.Sprint("order ", f.t.Name(), len(f.questions))
			f.ask(account, "token by business key", func(ctx context.Context, v *cardvault.Vault) (any, error) {
				return v.List(ctx, &cardvault.TokenListOptions{BusinessKey: o.BusinessKey})
			})
		}
		if i%5 == 0 {
			o.TokenTTL = time.Hour
		}
		if i%7 == 0 {
			o.IdempotencyKey = uuid.NewString()
		}
		token, err := v.Import(f.t.Context(), cardvault.Card{PAN: card.NewPAN([]byte(resealed(i))), Expiry: visa.Expiry, Name: visa.Name}, o)
		f.must(err)
		ids = append(ids, token.ID)
		f.ask(account, "token", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.Get(ctx, token.ID) })
		f.ask(account, "card", func(ctx context.Context, v *cardvault.Vault) (sum any, err error) {
			err = v.Use(ctx, token.ID, "test", func(_ context.Context, c *cardvault.UsedCard) error {
				c.PAN.Expose(func(digits []byte) { sum = sha256.Sum256(digits) })
				return nil
			})
			return sum, err
		})
	}
	return ids
}

// pay asks for payment data of tokens; the first has some.
func (f *furnished) pay(v *cardvault.Vault, account uuid.UUID, tokens ...uuid.UUID) {
	for i, id := range tokens {
		for range 20 / (1 + 9*i) {
			p, err := v.RequestPaymentData(f.t.Context(), id, purchase)
			f.must(err)
			f.ask(account, "payment data", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.PaymentData(ctx, id, p.ID) })
		}
		f.ask(account, "payment data of a token", func(ctx context.Context, v *cardvault.Vault) (any, error) {
			return v.ListPaymentData(ctx, id, &cardvault.ListOptions{Limit: cardvault.MaxLimit})
		})
		token, err := v.Get(f.t.Context(), id)
		f.must(err)
		art, err := uuid.Parse(token.CardArtURL[max(0, len(token.CardArtURL)-36):])
		f.must(err)
		f.ask(account, "card art", func(ctx context.Context, v *cardvault.Vault) (any, error) { return v.CardArt(ctx, art) })
	}
}

const filePage = 4096

// damages are what can happen to a file, each from its whole content. Where a page has its content of
// before, or lacks its end, a search can end as if it were whole, and Verify alone finds that.
var damages = []struct {
	name      string
	whole     bool // each answer shows the damage, if it is in the way
	whileOpen bool
	damage    func(f *furnished, file []byte, random *rand.Rand) []byte
}{
	{"bit", false, false, func(_ *furnished, file []byte, random *rand.Rand) []byte {
		file[random.IntN(len(file))] ^= 1 << random.IntN(8)
		return file
	}},
	{"zeroed page", true, false, func(_ *furnished, file []byte, random *rand.Rand) []byte {
		clear(pageOf(file, random))
		return file
	}},
	{"swapped pages", true, false, func(_ *furnished, file []byte, random *rand.Rand) []byte {
		a, b := pageOf(file, random), pageOf(file, random)
		kept := bytes.Clone(a)
		copy(a, b)
		copy(b, kept)
		return file
	}},
	{"torn page", false, false, func(f *furnished, file []byte, random *rand.Rand) []byte {
		page := random.IntN(len(file) / filePage)
		at := page*filePage + 512*(1+random.IntN(filePage/512-1))
		clear(file[at : (page+1)*filePage])
		if len(f.old) > at {
			copy(file[at:(page+1)*filePage], f.old[at:])
		}
		return file
	}},
	{"truncated", true, false, func(_ *furnished, file []byte, random *rand.Rand) []byte { return file[:random.IntN(len(file))] }},
	{"truncated while open", false, true, func(_ *furnished, file []byte, random *rand.Rand) []byte { return file[:random.IntN(len(file))] }},
	{"old page", false, false, func(f *furnished, file []byte, random *rand.Rand) []byte {
		page := random.IntN(min(len(file), len(f.old)) / filePage)
		copy(file[page*filePage:(page+1)*filePage], f.old[page*filePage:])
		return file
	}},
}

func pageOf(file []byte, random *rand.Rand) []byte {
	page := random.IntN(len(file) / filePage)
	return file[page*filePage : (page+1)*filePage]
}

// A toll counts what damaged files have done.
type toll struct {
	files    int
	refused  int // not opened
	harmless int // nothing shows them
	told     int // by a call
	verified int // calls answered wrongly, and Verify reports damage
	silent   int // calls answered wrongly, and nothing shows
}

// TestDamagedFiles: whatever is damaged in the file of a vault, each answer is right or says that data is
// damaged, and what an answer cannot show Verify does. Nothing panics or hangs. FAULTS times five is the
// number of files.
func TestDamagedFiles(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := furnish(t)
		used := len(bytes.TrimRight(f.file, "\x00"))
		used += filePage - 1 - (used-1)%filePage
		tolls := make([]toll, len(damages))
		for n := range 5 * kills(10) {
			random := rand.New(rand.NewPCG(25, uint64(n)))
			d := damages[n%len(damages)]
			whole := f.file[:used]
			file := d.damage(f, bytes.Clone(whole), random)
			size := len(f.file)
			if len(file) < used {
				size = len(file)
			}

			cut := func() { f.must(os.Truncate(f.path(), int64(size))) }
			if d.whileOpen {
				f.must(os.WriteFile(f.path(), f.file, 0o600))
				f.try(n, cut, &tolls[n%len(damages)])
				continue
			}
			f.must(os.WriteFile(f.path(), file, 0o600))
			cut()
			f.try(n, func() {}, &tolls[n%len(damages)])
		}

		var all toll
		for i, to := range tolls {
			name := damages[i].name
			t.Logf("%-20s %d files: %d not opened, %d harmless, %d told by calls, %d by Verify alone, %d silent", name, to.files, to.refused, to.harmless, to.told, to.verified, to.silent)
			if damages[i].whole && to.verified > 0 {
				t.Errorf("%s: %d files with wrong answers", name, to.verified)
			}
			all.files, all.refused, all.harmless, all.told = all.files+to.files, all.refused+to.refused, all.harmless+to.harmless, all.told+to.told
			all.verified, all.silent = all.verified+to.verified, all.silent+to.silent
		}
		t.Logf("%d damaged files: %d not opened, %d harmless, %d told by calls, %d by Verify alone, %d silently wrong", all.files, all.refused, all.harmless, all.told, all.verified, all.silent)
		if all.silent > 0 || all.told < all.files/5 {
			t.Errorf("%d files were noticed, %d were silently wrong", all.told, all.silent)
		}
	})
}

// try opens a file, damages it if that is to come, and asks all questions.
func (f *furnished) try(n int, damage func(), to *toll) {
	f.t.Helper()
	to.files++
	v, err := f.open()
	if err != nil {
		to.refused++
		if !tellsDamage(err) && !(errors.Is(err, cardvault.ErrWrongKey) && strings.Contains(err.Error(), "may be damaged")) {
			f.t.Errorf("file %d: not opened: %v", n, err)
		}
		return
	}
	damage()

	var wrong []string
	told := false
	for i, q := range f.questions {
		switch got, tells := answer(q, v); {
		case got == f.right[i]:
		case tells:
			told = true
		default:
			wrong = append(wrong, fmt.Sprintf("%s: %.200s, want %.200s", q.name, got, f.right[i]))
		}
	}
	report, err := v.Verify(f.t.Context(), nil)
	found := err != nil || len(report.Problems) > 0
	if err := v.Close(); err != nil && !tellsDamage(err) {
		f.t.Errorf("file %d: not closed: %v", n, err)
	}

	switch {
	case len(wrong) > 0 && found:
		to.verified++
		f.t.Logf("file %d: Verify alone finds it (%s): %d wrong, %s", n, counts(report.Problems), len(wrong), wrong[0])
	case len(wrong) > 0:
		to.silent++
		f.t.Errorf("file %d: %d are wrong: %s", n, len(wrong), strings.Join(wrong[:min(3, len(wrong))], "\n"))
	case told, found:
		to.told++
	default:
		switch got, err := f.stored(); {
		case errors.Is(err, store.ErrDamaged): // it is told at the next opening
			to.told++
		case err != nil || !maps.EqualFunc(got, f.records, func(a, b *store.Record) bool { return reflect.DeepEqual(a, b) }):
			to.silent++
			f.t.Errorf("file %d: no call and no report shows that records are lost or others: %v", n, err)
			for key, r := range f.records {
				if !reflect.DeepEqual(got[key], r) {
					f.t.Logf("of kind %d: there is %t", key.Kind, got[key] != nil)
				}
			}
		default:
			to.harmless++
		}
	}
}

// tellsDamage reports whether an error is one of damage.
func tellsDamage(err error) bool {
	return slices.ContainsFunc([]error{cardvault.ErrDamaged, cardvault.ErrFormat, cardvault.ErrUnavailable, cardvault.ErrOutcomeUnknown},
		func(damage error) bool { return errors.Is(err, damage) })
}
