package faults_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// All workers do common operations at random. One of them does a rare operation now and then.
var (
	commonOps = []string{"import", "import", "import", "lapse", "session", "tokenize", "update", "replace", "delete", "delete", "payment", "apikey", "revoke", "merchant"}
	rareOps   = []string{"account", "freeze", "thaw", "close", "rotate", "reseal", "retire", "series", "changekey", "anchor", "scrub", "repair", "backup", "increment", "verify", "sums"}
)

// severalSteps take more than one transaction, so their errors leave open how far they have come.
var severalSteps = []string{"retire", "close", "payment", "rotate", "series", "reseal", "repair", "backup", "increment", "restore", "move", "compact", "verify", "sums", "scrub", "tokenize", "replace"}

func init() {
	maps.Copy(ops, map[string]func(*attempt) (facts, error){
		"import": (*attempt).doImport, "lapse": (*attempt).doLapse, "session": (*attempt).doSession, "tokenize": (*attempt).doTokenize,
		"update": (*attempt).doUpdate, "replace": (*attempt).doReplace, "delete": (*attempt).doDelete, "payment": (*attempt).doPayment,
		"apikey": (*attempt).doAPIKey, "revoke": (*attempt).doRevoke, "merchant": (*attempt).doMerchant,

		"account": (*attempt).doAccount, "freeze": (*attempt).doFreeze, "thaw": (*attempt).doThaw, "close": (*attempt).doClose,
		"rotate": (*attempt).doRotate, "reseal": (*attempt).doReseal, "retire": (*attempt).doRetire, "series": (*attempt).doSeries,
		"scrub": (*attempt).doScrub, "repair": (*attempt).doRepair, "backup": (*attempt).doBackup, "restore": (*attempt).doRestore,
		"verify": (*attempt).doVerify, "sums": (*attempt).doSums, "compact": (*attempt).doCompact, "hour": (*attempt).doHour,
		"changekey": (*attempt).doChangeKey, "anchor": (*attempt).doAnchor, "increment": (*attempt).doIncrement, "move": (*attempt).doMove,
	})
}

func (a *attempt) doImport() (facts, error) {
	account := a.home
	a.Makes = name("token", account) + "/"
	a.Import = &imported{a.number(), a.order(), a.order()}
	a.begin(nil)
	token, err := a.Import.do(a.Context(), a.v)
	if err != nil {
		return nil, err
	}
	return facts{name("token", account, token.ID): tokenFact(token)}, nil
}

// do imports the card, or returns the token of the first time.
func (i *imported) do(ctx context.Context, v *cardvault.Vault) (*cardvault.Token, error) {
	return v.Import(ctx, cardOf(i.Number), &cardvault.ImportOptions{BusinessKey: i.Order, IdempotencyKey: i.Key})
}

// doLapse imports a card whose token expires.
func (a *attempt) doLapse() (facts, error) {
	account := a.home
	a.Makes = name("token", account) + "/"
	a.begin(nil)
	token, err := a.v.Import(a.Context(), a.card(), &cardvault.ImportOptions{TokenTTL: 2 * time.Hour})
	if err != nil {
		return nil, err
	}
	return facts{name("token", account, token.ID): tokenFact(token)}, nil
}

func (a *attempt) doSession() (facts, error) {
	account := a.home
	a.begin(nil)
	until := time.Now().Add(time.Hour)
	s, err := a.v.CreateSession(a.Context(), &cardvault.SessionOptions{BusinessKey: a.order()})
	if err != nil {
		return nil, err
	}
	return facts{name("session", account, s.ID.UUID()): {Text: "open", Until: until}}, nil
}

func (a *attempt) doTokenize() (facts, error) {
	ids, open := a.pick("session", "open")
	if ids == nil {
		return nil, errNothing
	}
	completed := facts{name("session", ids...): {Text: "completed", Until: open.Until}}
	a.Makes = name("token", ids[0]) + "/"
	a.begin(completed)
	token, err := a.v.In(ids[0]).Tokenize(a.Context(), cardvault.NewSessionID(ids[1]), a.card())
	if err != nil {
		return nil, err
	}
	completed[name("token", ids[0], token.ID)] = tokenFact(token)
	return completed, nil
}

func (a *attempt) doUpdate() (facts, error) {
	ids, was := a.pick("token", "")
	if ids == nil {
		return nil, errNothing
	}
	next := a.order()
	masked := was.Text[:len("424242******4242")]
	changed := facts{name("token", ids...): {Text: masked + " " + next, Until: was.Until}}
	a.begin(changed)
	_, err := a.v.In(ids[0]).Update(a.Context(), ids[1], cardvault.TokenUpdate{BusinessKey: &next})
	return changed, err
}

func (a *attempt) doReplace() (facts, error) {
	ids, was := a.pick("token", "")
	if ids == nil {
		return nil, errNothing
	}
	next := a.card()
	may := a.gone(ids[0], ids[1])
	masked := next.PAN.String()
	may[name("token", ids...)] = fact{Text: masked + was.Text[len(masked):], Until: was.Until}
	a.begin(may)
	_, err := a.v.In(ids[0]).Replace(a.Context(), ids[1], next, nil)
	return may, err
}

func (a *attempt) doDelete() (facts, error) {
	ids, _ := a.pick("token", "")
	if ids == nil {
		return nil, errNothing
	}
	gone := a.gone(ids[0], ids[1])
	a.begin(gone)
	return gone, a.v.In(ids[0]).Delete(a.Context(), ids[1])
}

func (a *attempt) doPayment() (facts, error) {
	ids, was := a.pick("token", "")
	if ids == nil || !was.Until.IsZero() {
		return nil, errNothing
	}
	if token, err := a.v.In(ids[0]).Get(a.Context(), ids[1]); err != nil || token.NetworkTokenStatus.String() != "active" {
		a.pass(time.Minute) // while it is provisioned
	}
	a.Makes = name("payment", ids...) + "/"
	a.begin(nil)
	until := time.Now().Add(retention)
	data, err := a.v.In(ids[0]).RequestPaymentData(a.Context(), ids[1], cardvault.PaymentRequest{Amount: 100, Currency: "EUR", Reference: a.order()})
	if err != nil {
		return nil, err
	}
	if data.Encrypted == "" { // the network has refused it
		return nil, nil
	}
	return facts{name("payment", ids[0], ids[1], data.ID): {Text: "kept", Until: until}}, nil
}

func (a *attempt) doAPIKey() (facts, error) {
	account := a.home
	a.Makes = name("apikey", account) + "/"
	a.begin(nil)
	key, err := a.v.CreateAPIKey(a.Context(), a.order(), []cardvault.Scope{cardvault.ScopeTokensRead}, nil)
	if err != nil {
		return nil, err
	}
	return facts{name("apikey", account, key.ID): {Text: key.Label}, name("secret", account) + "/" + key.Text.Text(): {Text: key.ID.String()}}, nil
}

func (a *attempt) doRevoke() (facts, error) {
	ids, _ := a.pick("apikey", "")
	if ids == nil {
		return nil, errNothing
	}
	gone := facts{name("apikey", ids...): {}}
	a.mu.Lock()
	for secret, f := range a.known.facts {
		if f.Text == ids[1].String() {
			gone[secret] = fact{}
		}
	}
	a.mu.Unlock()
	a.begin(gone)
	return gone, a.v.In(ids[0]).DeleteAPIKey(a.Context(), ids[1])
}

func (a *attempt) doMerchant() (facts, error) {
	account := a.home
	a.Makes = name("merchant", account) + "/"
	a.begin(nil)
	m, err := a.v.CreateMerchant(a.Context(), a.order(), nil)
	if err != nil {
		return nil, err
	}
	return facts{name("merchant", account, m.ID): {Text: m.Name}}, nil
}

// other returns the id of an account that is not the default one and has a state, and the facts
// that its end makes.
func (a *attempt) other(state string) (id uuid.UUID, all facts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for at, f := range a.known.facts {
		text, ok := strings.CutPrefix(at, "account/")
		if !ok || f.Text != state || text == a.home.String() || a.busy(text) {
			continue
		}
		id = uuid.MustParse(text)
		all = facts{}
		for at := range a.known.facts {
			if strings.Contains(at, text) {
				all[at] = fact{}
			}
		}
		break
	}
	return id, all
}

// doAccount makes an account with a token and an API key, unless there is one.
func (a *attempt) doAccount() (facts, error) {
	if id, _ := a.other("open"); id != uuid.Nil {
		return nil, errNothing
	}
	a.Makes = "account/"
	a.begin(nil)
	account, err := a.v.CreateAccount(a.Context(), "another", nil)
	if err != nil {
		return nil, err
	}
	made := facts{name("account", account.ID): {Text: "open"}}
	a.write(line{Worker: a.n, Op: a.Op, State: done, Facts: made})

	a.line = line{Worker: a.n, Op: "import", Makes: name("token", account.ID) + "/"}
	a.begin(nil)
	token, err := a.v.In(account.ID).Import(a.Context(), a.card(), nil)
	if err != nil {
		return nil, err
	}
	return facts{name("token", account.ID, token.ID): tokenFact(token)}, nil
}

func (a *attempt) doFreeze() (facts, error) {
	id, _ := a.other("open")
	if id == uuid.Nil {
		return nil, errNothing
	}
	frozen := facts{name("account", id): {Text: "frozen"}}
	a.begin(frozen)
	_, err := a.v.In(id).FreezeAccount(a.Context())
	return frozen, err
}

func (a *attempt) doThaw() (facts, error) {
	id, _ := a.other("frozen")
	if id == uuid.Nil {
		return nil, errNothing
	}
	open := facts{name("account", id): {Text: "open"}}
	a.begin(open)
	_, err := a.v.In(id).ThawAccount(a.Context())
	return open, err
}

func (a *attempt) doClose() (facts, error) {
	id, all := a.other("open")
	if id == uuid.Nil {
		return nil, errNothing
	}
	a.begin(all)
	_, err := a.v.In(id).CloseAccount(a.Context()) // Run erases its objects later
	return all, err
}

func (a *attempt) doRotate() (facts, error) {
	r, err := a.v.KeyReport(a.Context())
	if err != nil {
		return nil, errNothing
	}
	next := facts{"terms": {Text: strconv.Itoa(len(r.Terms) + 1)}}
	a.begin(next)
	_, err = a.v.RotateKeys(a.Context(), nil)
	return next, err
}

func (a *attempt) doReseal() (facts, error) {
	a.begin(nil)
	return nil, a.v.Reseal(a.Context())
}

// doRetire retires the oldest term that is not retired.
func (a *attempt) doRetire() (facts, error) {
	r, err := a.v.KeyReport(a.Context())
	if err != nil || len(r.Terms) < 2 {
		return nil, errNothing
	}
	var term uint32
	for _, t := range r.Terms[:len(r.Terms)-1] {
		if t.State != cardvault.TermDestroyed {
			term = t.Number
			break
		}
	}
	if term == 0 {
		return nil, errNothing
	}
	destroyed := facts{fmt.Sprint("term/", term): {Text: "destroyed"}}
	a.begin(destroyed)
	for range 5 {
		if err = a.v.RetireTerm(a.Context(), term); !errors.Is(err, cardvault.ErrTermInUse) {
			break
		}
		a.pass(25 * time.Hour)
	}
	if errors.Is(err, cardvault.ErrTermInUse) { // by records of another worker: Run ends it some time
		err = errLater
	}
	return destroyed, err
}

// doSeries rotates the keys of any series.
func (a *attempt) doSeries() (facts, error) {
	all := []cardvault.KeySeries{cardvault.SeriesAudit, cardvault.SeriesFingerprint, cardvault.SeriesLookup}
	series := all[a.random.IntN(len(all))]
	a.begin(nil)
	_, err := a.v.RotateSeries(a.Context(), series, nil)
	if errors.Is(err, cardvault.ErrRotating) {
		err = nil
	}
	return nil, err
}

func (a *attempt) doScrub() (facts, error) {
	a.begin(nil)
	return nil, a.v.Scrub(a.Context())
}

// doHour lets time pass, in which tokens and sessions expire.
func (a *attempt) doHour() (facts, error) {
	a.begin(nil)
	a.pass(3 * time.Hour)
	return nil, nil
}

func (a *attempt) doRepair() (facts, error) {
	a.begin(nil)
	r, err := a.v.Repair(a.Context(), nil)
	if err == nil && len(r.Found) > 0 {
		err = fmt.Errorf("repair has found %+v", r.Found)
	}
	return nil, err
}

func (a *attempt) doVerify() (facts, error) {
	a.begin(nil)
	r, err := a.v.Verify(a.Context(), nil)
	if err == nil && len(r.Problems) > 0 {
		err = fmt.Errorf("verify has found %+v", r.Problems)
	}
	return nil, err
}

func (a *attempt) doSums() (facts, error) {
	kept := facts{"sums": {Text: "kept"}}
	a.begin(kept)
	return kept, a.v.BeginSums(a.Context(), nil)
}

// doChangeKey has the next key wrap the keys of the vault.
func (a *attempt) doChangeKey() (facts, error) {
	a.mu.Lock()
	numbers := a.known.keys()
	a.mu.Unlock()
	changed := facts{"key": {Text: strconv.Itoa(numbers[0] + 1)}}
	a.begin(changed)
	return changed, a.v.ChangeKeyring(a.Context(), keyring(a.T, numbers[0]+1))
}

// doAnchor lets so much time pass that the anchor follows the commits.
func (a *attempt) doAnchor() (facts, error) {
	before := a.anchor.texts.Load()
	made, err := a.doMerchant()
	if err != nil {
		return nil, err
	}
	a.pass(11 * time.Second)
	if !a.Faulty && a.anchor.texts.Load() == before {
		err = errors.New("the anchor has not followed")
	}
	return made, err
}

// The files beside the vault.
const (
	backupName    = "backup"
	incrementName = "increment"
	ledgerName    = "ledger" // of deletions after the backup
	restoredName  = "restored"
	movedName     = "moved"
	anchorName    = "anchor"
)

// keep writes a file beside the vault, durably.
func (l *life) keep(name string, data []byte) error {
	path := filepath.Join(l.Dir, name)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return err
	}
	return syncFolder(l.Dir)
}

func syncFolder(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (a *attempt) doBackup() (facts, error) {
	a.begin(nil)
	var stream, manifest bytes.Buffer
	if _, err := a.v.Backup(a.Context(), &stream, &cardvault.BackupOptions{Manifest: &manifest}); err != nil {
		return nil, err
	}
	a.manifest = nil // of another backup
	err := os.Remove(filepath.Join(a.Dir, incrementName))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = a.keep(backupName, stream.Bytes())
	}
	if err == nil {
		a.manifest = manifest.Bytes()
	}
	return nil, err
}

// doIncrement backs up the changes since the backup of this process. A later increment takes
// its place.
func (a *attempt) doIncrement() (facts, error) {
	if a.manifest == nil {
		return nil, errNothing
	}
	a.begin(nil)
	var stream bytes.Buffer
	_, err := a.v.Backup(a.Context(), &stream, &cardvault.BackupOptions{Since: bytes.NewReader(a.manifest)})
	if err != nil {
		return nil, err
	}
	return nil, a.keep(incrementName, stream.Bytes())
}

// A deletions is the ledger for a restoration, as it is stored.
type deletions struct {
	Exports [][]byte
	Keys    []ed25519.PublicKey
}

// doRestore restores the backup and its increment into another place, and repeats the deletions
// since.
func (a *attempt) doRestore() (facts, error) {
	if _, err := os.Stat(filepath.Join(a.Dir, backupName)); err != nil {
		return nil, errNothing
	}
	kept := deletions{Keys: a.v.AuditPublicKeys()}
	for account, err := range a.v.AllAccounts(a.Context(), nil) {
		if err != nil {
			return nil, err
		}
		var export bytes.Buffer
		if err := a.v.In(account.ID).ExportAudit(a.Context(), &export, time.Time{}, time.Time{}); err != nil {
			return nil, err
		}
		kept.Exports = append(kept.Exports, export.Bytes())
	}
	text, err := json.Marshal(kept)
	if err = errors.Join(err, a.keep(ledgerName, text)); err != nil {
		return nil, err
	}

	a.begin(facts{"restored/": {Text: "under way"}})
	c, err := chainIn(a.Dir)
	if err != nil {
		return nil, err
	}
	r, err := cardvault.RestoreDir(a.Context(), filepath.Join(a.Dir, restoredName), a.known.everyKey(a.T), c.backup(), c.options())
	if err != nil {
		return nil, err
	}
	return facts{"restored/": {Text: r.ID.String()}}, nil
}

// A chain restores a vault.
type chain struct {
	full, increment []byte
	ledger          *deletions // nil: no restoration has begun
}

// chainIn reads the files beside a vault. Without a backup the chain is nil.
func chainIn(dir string) (c *chain, err error) {
	c = new(chain)
	if c.full, err = os.ReadFile(filepath.Join(dir, backupName)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if c.increment, err = os.ReadFile(filepath.Join(dir, incrementName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, ledgerName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, nil
	case err != nil:
		return nil, err
	}
	return c, json.Unmarshal(text, &c.ledger)
}

func (c *chain) backup() io.Reader { return bytes.NewReader(c.full) }

func (c *chain) options() *cardvault.RestoreOptions {
	o := new(cardvault.RestoreOptions)
	if c.increment != nil {
		o.Increments = []io.Reader{bytes.NewReader(c.increment)}
	}
	if c.ledger != nil {
		o.Ledger = &cardvault.DeletionLedger{PublicKeys: c.ledger.Keys}
		for _, e := range c.ledger.Exports {
			o.Ledger.Exports = append(o.Ledger.Exports, bytes.NewReader(e))
		}
	}
	return o
}

// doMove moves the vault to another place, where the life goes on.
func (a *attempt) doMove() (facts, error) {
	r, err := a.v.KeyReport(a.Context())
	if err != nil {
		return nil, errNothing
	}
	moved := facts{"place": {Text: movedName}, "terms": {Text: strconv.Itoa(len(r.Terms) + 1)}}
	a.begin(moved)
	to, err := a.openStore(movedName)
	if err != nil {
		return nil, err
	}
	ring := a.known.everyKey(a.T)
	if _, err := cardvault.Move(a.Context(), a.store, to, ring, moveOptions(a.anchor)); err != nil {
		return nil, errors.Join(err, to.Close())
	}
	if err := a.rest(); err != nil {
		return nil, err
	}
	a.store = to
	a.v, err = cardvault.New(a.Context(), to, ring, vaultOptions(a.sim, a.anchor))
	if err == nil {
		a.run()
	}
	return moved, err
}

func moveOptions(anchor cardvault.Anchor) *cardvault.MoveOptions {
	o := vaultOptions(nil, anchor)
	return &cardvault.MoveOptions{Audit: o.Audit, Anchor: o.Anchor}
}

func (a *attempt) doCompact() (facts, error) {
	a.begin(nil)
	return nil, a.fill(a.Context())
}
