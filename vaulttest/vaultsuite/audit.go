package vaultsuite

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
	"github.com/cardvault/cardvault/store"
	"github.com/google/uuid"
)

// auditedRuns are the runs whose vaults have an audit log.
var auditedRuns = []string{"Twice", "Audited"}

// An auditor is the sink of a vault with an audit log, and hears of its writes. When the test
// ends, each write has its record, and the logs of all accounts are whole.
type auditor struct {
	slog.Handler

	mu     sync.Mutex
	kept   map[uuid.UUID]*audit.Checkpoint
	writes map[effect]bool
}

// An effect is a write that has succeeded.
type effect struct {
	operation       string
	account, object uuid.UUID
}

// unaudited are behaviours without an audit log, because they count records.
var unaudited = []string{"AccountClosed", "Deliveries", "DeliveriesOfADeletedWebhook", "EventsDamaged", "Reseal"}

// unrecorded are operations of background work, which have no record.
var unrecorded = []string{"expire"}

// audited returns options with an audit log, unless the test is of another run, or they have
// one. Its background writes would be in the way of a decorator of the store.
func audited(t testing.TB, s store.Store, opts *cardvault.Options) (*cardvault.Options, *auditor) {
	names := strings.Split(t.Name(), "/")
	in := func(name string) bool { return slices.Contains(names, name) }
	if _, ok := s.(direct); !ok || opts.Audit != nil || !slices.ContainsFunc(auditedRuns, in) || slices.ContainsFunc(unaudited, in) {
		return opts, nil
	}
	a := &auditor{Handler: slog.DiscardHandler, kept: map[uuid.UUID]*audit.Checkpoint{}, writes: map[effect]bool{}}
	if opts.Logger != nil {
		a.Handler = opts.Logger.Handler()
	}
	o := *opts
	o.Audit, o.Logger = &cardvault.AuditOptions{Sink: a}, slog.New(a)
	return &o, a
}

// Keep implements [audit.Sink].
func (a *auditor) Keep(_ context.Context, c *audit.Checkpoint) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if former := a.kept[c.AccountID]; former == nil || former.Number < c.Number {
		a.kept[c.AccountID] = c
	}
	return nil
}

// Enabled implements [slog.Handler]. Writes are logged at the lowest level.
func (a *auditor) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (a *auditor) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "write" || r.Message == "card used" {
		a.heard(r)
	}
	if !a.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return a.Handler.Handle(ctx, r)
}

// heard notes a write that has succeeded.
func (a *auditor) heard(r slog.Record) {
	named := map[string]any{}
	r.Attrs(func(attr slog.Attr) bool {
		named[attr.Key] = attr.Value.Any()
		return true
	})
	e := effect{named["operation"].(string), named["account"].(uuid.UUID), named["object"].(uuid.UUID)}
	if named["error"] != nil || slices.Contains(unrecorded, e.operation) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes[e] = true
}

// prove checks the logs of a vault that is about to be closed.
func (a *auditor) prove(t testing.TB, v *cardvault.Vault) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // of a test that ends
	ids := []uuid.UUID{uuid.Nil}
	for account, err := range v.AllAccounts(ctx, nil) {
		if err != nil {
			return // the test has closed or damaged it
		}
		ids = append(ids, account.ID)
	}

	recorded := map[effect]bool{}
	for _, id := range ids {
		var export bytes.Buffer
		switch err := v.In(id).ExportAudit(ctx, &export, time.Time{}, time.Time{}); {
		case errors.Is(err, cardvault.ErrClosed), errors.Is(err, cardvault.ErrStorageFull):
			return
		default:
			noError(t, err)
		}
		opts := &audit.VerifyOptions{PublicKeys: v.AuditPublicKeys(), Kept: a.last(), Each: func(r *audit.Record) error {
			if r.Outcome == audit.Success {
				recorded[effect{r.Operation, r.AccountID, r.ObjectID}] = true
			}
			return nil
		}}
		if _, err := audit.Verify(&export, opts); err != nil {
			t.Errorf("the audit log of account %v: %v", id, err)
		}
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	for e := range a.writes {
		if !recorded[e] {
			t.Errorf("%s of %v has no record in the audit log of account %v", e.operation, e.object, e.account)
		}
	}
}

// last returns the checkpoints that are kept.
func (a *auditor) last() []*audit.Checkpoint {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.kept))
}
