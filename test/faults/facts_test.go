package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/google/uuid"
)

// A line of the log says that a process begins an operation, that the operation was
// acknowledged, or that it has failed.
type line struct {
	At     time.Time
	Worker int
	Op     string
	State  state

	// Facts may become true by an operation that begins, and have become true by an acknowledged
	// operation. Makes begins the name of a fact whose id is not known before.
	Facts facts  `json:",omitempty"`
	Makes string `json:",omitempty"`
	Error string `json:",omitempty"`

	Import *imported `json:",omitempty"`
	Anchor string    `json:",omitempty"` // the text to which the anchor has advanced
}

// An imported card can be imported again.
type imported struct{ Number, Order, Key string }

type state string

const (
	begun   state = "begun"
	done    state = "done"
	undone  state = "undone"  // it has failed, and has changed nothing
	unknown state = "unknown" // it has failed, and may have changed all that it could
	passes  state = "passes"  // it waits until a time

	anchored state = "anchored" // the anchor has advanced, beside the operations
)

func parseLine(text string) (l line) {
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		panic(fmt.Sprintf("a line of the log: %v: %s", err, text))
	}
	return l
}

// Facts say which objects a vault has, by name: "token/ACCOUNT/ID", "apikey/ACCOUNT/ID" and so on. A fact
// without a text says that the vault does not have it, or no more.
type facts map[string]fact

type fact struct {
	Text  string
	Until time.Time `json:",omitzero"` // from then on the vault does not have it
}

// at returns the text at a time.
func (f fact) at(now time.Time) string {
	if !f.Until.IsZero() && !now.Before(f.Until) {
		return ""
	}
	return f.Text
}

// A known is the content of a vault as its log says.
type known struct {
	facts facts
	maybe map[string][]fact // facts that an operation without an outcome may have made
	open  map[int]line      // operations that have begun, by worker
	makes []line            // operations without an outcome that may have made something
	last  time.Time

	imports []line // without an outcome
	acked   int

	backups    int   // acknowledged, without the increments
	increments int   // acknowledged since the last of them
	backedUp   facts // at the last acknowledged backup or increment
	restoring  facts // when the restoration began, whose ledger has the deletions until then
	alone      bool  // the vault did nothing else during a backup

	anchor string // the last text
	apart  bool   // the anchor is on another disk, which loses nothing

	lines []line // all, for a report
}

func newKnown() *known {
	return &known{facts: facts{}, maybe: map[string][]fact{}, open: map[int]line{}}
}

func (k *known) take(l line) {
	k.lines = append(k.lines, l)
	if l.At.After(k.last) {
		k.last = l.At
	}
	if l.Anchor != "" {
		k.anchor = l.Anchor
	}
	if l.State == passes || l.State == anchored {
		return
	}
	begin := k.open[l.Worker]
	delete(k.open, l.Worker)
	switch l.State {
	case begun:
		k.open[l.Worker] = l
		if l.Op == "restore" {
			k.restoring = maps.Clone(k.facts)
		}
	case unknown:
		k.unsure(begin)
	case done:
		k.acked++
		for name := range begin.Facts {
			delete(k.maybe, name)
		}
		for name, f := range l.Facts {
			k.facts[name] = f
			delete(k.maybe, name)
		}
		switch l.Op {
		case "backup":
			k.backups, k.increments, k.backedUp = k.backups+1, 0, maps.Clone(k.facts)
		case "increment":
			k.increments, k.backedUp = k.increments+1, maps.Clone(k.facts)
		}
	}
}

func (k *known) unsure(l line) {
	for name, f := range l.Facts {
		k.maybe[name] = append(k.maybe[name], f)
	}
	if l.Makes != "" {
		k.makes = append(k.makes, l)
	}
	if l.Import != nil {
		k.imports = append(k.imports, l)
	}
}

// died takes the end of the process: operations that have begun have no outcome.
func (k *known) died() {
	for worker, l := range k.open {
		k.unsure(l)
		delete(k.open, worker)
	}
}

// notInside are facts about a vault that it does not have itself.
var notInside = []string{"restored", "key", "place", "sums"}

// compare returns the facts that the vault lacks or must not have. Facts that the log leaves open are
// known from then on.
func (k *known) compare(have facts, now time.Time) (wrong []string) {
	states := map[string]string{} // of accounts
	for name, f := range have {
		if id, ok := strings.CutPrefix(name, "account/"); ok {
			states[id] = f.Text
		}
	}

	names := maps.Clone(have)
	maps.Copy(names, k.facts)
	for name := range k.maybe {
		names[name] = fact{}
	}
	makes, later := slices.Clone(k.makes), map[string][]fact{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		parts := strings.Split(name, "/")
		if slices.Contains(notInside, parts[0]) {
			if maybe, ok := k.maybe[name]; ok { // checked later
				later[name] = maybe
			}
			continue
		}
		if len(parts) > 2 && states[parts[1]] == "frozen" {
			continue
		}
		want, ok := k.facts[name]
		had := have[name]
		candidates := append(slices.Clone(k.maybe[name]), want)
		found := slices.ContainsFunc(candidates, func(f fact) bool { return f.at(now) == had.Text || f.Text == had.Text && near(f.Until, now) })
		if !ok && !found { // was it made by an operation without an outcome?
			at := slices.IndexFunc(makes, func(l line) bool { return strings.HasPrefix(name, l.Makes) })
			if found = at >= 0; found {
				makes = slices.Delete(makes, at, at+1)
				candidates = append(candidates, had)
			}
		}
		if !found {
			wrong = append(wrong, fmt.Sprintf("%s: has %q, want one of %v%s", name, had.Text, candidates, k.about(parts[min(2, len(parts)-1)])))
			continue
		}
		if parts[0] == "term" && had.Text == "" { // a later process may destroy it
			later[name] = k.maybe[name]
			continue
		}
		if len(k.maybe[name]) > 0 || !ok {
			at := slices.IndexFunc(candidates, func(f fact) bool { return f.at(now) == had.Text })
			k.facts[name] = candidates[max(0, at)]
		}
	}
	k.maybe, k.makes = later, nil
	return wrong
}

// about returns what the log says about an id.
func (k *known) about(id string) (text string) {
	for _, l := range k.lines {
		for name, f := range l.Facts {
			if l.Op != "history" && strings.Contains(name, id) {
				text += fmt.Sprintf("\n\t%v %s %s: %s is %v %s", l.At, l.Op, l.State, name, f, l.Error)
			}
		}
	}
	return text
}

func near(a, b time.Time) bool { return a.Sub(b).Abs() < 5*time.Second }

// observe returns the facts of a vault, and looks for wanted facts that no list shows.
func observe(ctx context.Context, v *cardvault.Vault, wanted *known) (facts, error) {
	have := facts{}
	for a, err := range v.AllAccounts(ctx, nil) {
		if err != nil {
			return nil, err
		}
		text := map[cardvault.AccountState]string{cardvault.AccountOpen: "open", cardvault.AccountFrozen: "frozen"}[a.State]
		have["account/"+a.ID.String()] = fact{Text: text}
		if text != "open" {
			continue
		}
		if err := observeAccount(ctx, v.In(a.ID), a.ID.String(), have); err != nil {
			return nil, err
		}
	}

	r, err := v.KeyReport(ctx)
	if err != nil {
		return nil, err
	}
	have["terms"] = fact{Text: strconv.Itoa(len(r.Terms))}
	for _, term := range r.Terms {
		if term.State == cardvault.TermDestroyed {
			have[fmt.Sprint("term/", term.Number)] = fact{Text: "destroyed"}
		}
	}

	names := maps.Clone(wanted.facts)
	for name := range wanted.maybe {
		names[name] = fact{}
	}
	for name := range names {
		f, err := observeOne(ctx, v, have, strings.Split(name, "/"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if f != nil {
			have[name] = *f
		}
	}
	return have, nil
}

// observeAccount adds the facts of an account that is open.
func observeAccount(ctx context.Context, v *cardvault.Vault, account string, have facts) error {
	for token, err := range v.All(ctx, nil) {
		if err != nil {
			return err
		}
		have["token/"+account+"/"+token.ID.String()] = tokenFact(token)
	}
	for key, err := range v.AllAPIKeys(ctx, nil) {
		if err != nil {
			return err
		}
		have["apikey/"+account+"/"+key.ID.String()] = fact{Text: key.Label}
	}
	for merchant, err := range v.AllMerchants(ctx, nil) {
		if err != nil {
			return err
		}
		if !merchant.Primary {
			have["merchant/"+account+"/"+merchant.ID.String()] = fact{Text: merchant.Name}
		}
	}
	return nil
}

func tokenFact(token *cardvault.Token) fact {
	return fact{Text: token.MaskedAccountNumber + " " + token.BusinessKey, Until: token.ExpiresAt}
}

// observeOne looks for a fact that no list shows, and returns nil for the others.
func observeOne(ctx context.Context, v *cardvault.Vault, have facts, name []string) (*fact, error) {
	if len(name) > 2 && have["account/"+name[1]].Text == "frozen" {
		return nil, nil
	}
	var text string
	var err error
	switch name[0] {
	case "token": // a list may leave it out
		var token *cardvault.Token
		if token, err = v.In(uuid.MustParse(name[1])).Get(ctx, uuid.MustParse(name[2])); err == nil {
			text = tokenFact(token).Text
		}
	case "secret":
		var p *cardvault.Principal
		if p, err = v.Authenticate(ctx, name[2]); err == nil {
			text = p.Key.ID.String()
		}
	case "session":
		var s *cardvault.SessionStatus
		if s, err = v.In(uuid.MustParse(name[1])).SessionStatus(ctx, cardvault.NewSessionID(uuid.MustParse(name[2]))); err == nil {
			text = "open"
			if s.State != cardvault.SessionOpen {
				text = "completed"
			}
		}
	case "payment":
		var p *cardvault.PaymentData
		p, err = v.In(uuid.MustParse(name[1])).PaymentData(ctx, uuid.MustParse(name[2]), uuid.MustParse(name[3]))
		if err == nil && p.Encrypted != "" { // else the card was replaced
			text = "kept"
		}
	default:
		return nil, nil
	}
	if errors.Is(err, cardvault.ErrNotFound) || errors.Is(err, cardvault.ErrUnauthenticated) {
		err = nil
	}
	return &fact{Text: text}, err
}
