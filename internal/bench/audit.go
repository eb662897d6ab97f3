package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/audit"
)

// auditSpan is long enough for several checkpoints.
const auditSpan = 3 * time.Second

// audits compares imports into a vault that has an audit log with imports into one that has
// none, of one account and of many.
func (b *bench) audits(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	if err := b.loadKeys(); err != nil {
		return err
	}

	m := matchup{name: "audit", with: "an audit log", goal: .85, span: max(b.span, auditSpan)}
	for i, opts := range []*cardvault.Options{nil, {Audit: &cardvault.AuditOptions{Sink: unkept{}}}} {
		if m.vaults[i], err = b.openMany(ctx, &open, fmt.Sprint("audit-", i), opts); err != nil {
			return err
		}
	}
	// It waits for the checkpoints, so that the next vault has the machine to itself.
	m.settle = func() error { return m.vaults[1][0].ExportAudit(ctx, io.Discard, time.Now(), time.Time{}) }
	return m.play(ctx, b)
}

// unkept is a sink that keeps nothing.
type unkept struct{}

func (unkept) Keep(context.Context, *audit.Checkpoint) error { return nil }
