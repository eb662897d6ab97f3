// Bench measures the vault against floors: raw bbolt, a bare View and one GCM open, a bare
// net/http handler, raw pgx, and against OpenBao if its binary is there.
//
//	go run -C internal/bench . [-tokens 1000000] [-rounds 5] [-for 700ms] [-out ../../docs/benchmarks] [disk open get list import calls http sinks network webhooks forward sweep families tails reseal backup scrub audit sums churn postgres partitions replicas openbao cost]
//
// The things compared take turns, and the medians of the rounds count. Absolute figures
// depend on the machine; the ratios hardly do. Each row is judged by its goal. -out writes
// the table as JSON and plots, and into benchmarks.md beside the folder. Names of parts
// select them; cost only runs when it is named.
//
// With -gate it compares the costs of calls with testdata/gate.json instead, and fails if
// one has risen.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bench/table"
	"github.com/google/uuid"
)

type bench struct {
	table *table.Table
	part  string // whose rows are measured

	family   int // records below one
	span     time.Duration
	kills    int    // of processes that seal records anew
	cold     bool   // reads come from the disk
	postgres string // a URL; "" starts a server
	openbao  string // a binary

	dir   string
	keys  *cardvault.Keyring
	vault *cardvault.Vault
	ids   []uuid.UUID // a sample of the tokens
	shape shape       // of an import
}

// A part measures rows.
type part struct {
	name    string
	run     func(context.Context) error
	asked   bool // it runs when it is named
	noVault bool // it needs no filled vault
}

// parts in the order in which they run: disk comes first, since other parts add records.
func (b *bench) parts() []part {
	return []part{
		{name: "disk", run: b.disk}, {name: "open", run: b.opens}, {name: "get", run: b.reads}, {name: "list", run: b.lists},
		{name: "import", run: b.imports}, {name: "calls", run: b.calls}, {name: "http", run: b.http},
		{name: "sinks", run: b.sinks}, {name: "network", run: b.network}, {name: "webhooks", run: b.webhooks},
		{name: "forward", run: b.forwards, noVault: true},
		{name: "sweep", run: b.sweep}, {name: "families", run: b.families},
		{name: "tails", run: b.tails, noVault: true}, {name: "reseal", run: b.reseals, noVault: true},
		{name: "backup", run: b.backups, noVault: true}, {name: "scrub", run: b.scrubs, noVault: true},
		{name: "audit", run: b.audits, noVault: true}, {name: "sums", run: b.sums, noVault: true}, {name: "churn", run: b.churn, noVault: true},
		{name: "postgres", run: b.postgreSQL, noVault: true}, {name: "partitions", run: b.partitions, noVault: true},
		{name: "replicas", run: b.replicas, noVault: true}, {name: "openbao", run: b.peers},
		{name: "cost", run: b.costs, asked: true},
	}
}

func main() {
	b := &bench{table: new(table.Table)}
	flag.IntVar(&b.table.Tokens, "tokens", 1_000_000, "tokens in the vault")
	flag.IntVar(&b.table.Rounds, "rounds", 5, "rounds, of which the median counts")
	flag.DurationVar(&b.span, "for", 700*time.Millisecond, "duration of one measurement of a round")
	flag.IntVar(&b.family, "family", 100_000, "records below the one that is deleted, of families")
	flag.IntVar(&b.kills, "kills", 100, "processes that reseal kills, at most 400, one for each key term")
	flag.BoolVar(&b.cold, "cold", false, "get reads from a file that is in no page cache")
	flag.StringVar(&b.postgres, "postgres", os.Getenv("BENCH_POSTGRES"), "`URL` of a database for postgres; a server is started otherwise")
	flag.StringVar(&b.openbao, "openbao", os.Getenv("BENCH_OPENBAO"), "`path` of the program bao")
	out := flag.String("out", "", "`folder` for the table as JSON and plots")
	gate := flag.Bool("gate", false, "compare costs with testdata/gate.json")
	update := flag.Bool("update", false, "with -gate: write testdata/gate.json")
	replica := flag.String("replica", "", "used by replicas: make calls, import or get, on the database in BENCH_POSTGRES")
	child := flag.String("import-until-killed", "", "used by open: import into the vault in this `directory`")
	sealer := flag.String("reseal-until-killed", "", "used by reseal: seal the records in this `directory` anew")
	flag.Parse()
	b.table.Span = b.span.String()

	var err error
	switch {
	case *child != "":
		b.dir = *child
		err = b.importUntilKilled()
	case *sealer != "":
		b.dir = *sealer
		err = b.resealUntilKilled()
	case *replica != "":
		err = runReplica(context.Background(), b.postgres, *replica)
	case *gate:
		err = b.inFolder(func(ctx context.Context) error { return b.gate(ctx, "testdata/gate.json", *update) })
	default:
		err = b.inFolder(func(ctx context.Context) error { return b.run(ctx, flag.Args(), *out) })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// inFolder calls f with a folder that is removed.
func (b *bench) inFolder(f func(context.Context) error) (err error) {
	if b.dir, err = os.MkdirTemp("", "cardvault-bench-*"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	return f(context.Background())
}

// run measures the selected parts, all if none is, and stores the table.
func (b *bench) run(ctx context.Context, selected []string, out string) (err error) {
	parts := b.parts()
	for _, name := range selected {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("there is no part %s", name)
		}
	}
	parts = slices.DeleteFunc(parts, func(p part) bool {
		return len(selected) > 0 && !slices.Contains(selected, p.name) || len(selected) == 0 && p.asked
	})

	if b.table.Machine, err = table.ThisMachine(b.dir); err != nil {
		return err
	}
	fmt.Println(b.table.Machine)
	if slices.ContainsFunc(parts, func(p part) bool { return !p.noVault }) {
		if err := b.fill(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.vault.Close()) }()
	}

	for _, p := range parts {
		b.part = p.name
		start := time.Now()
		fmt.Printf("\n%s\n", p.name)
		if err := p.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Printf("  took %v\n", time.Since(start).Round(time.Second))
	}
	fmt.Printf("\n%s\n", b.table.Count())
	if out == "" {
		return nil
	}
	return b.table.Store(out, filepath.Clean(strings.TrimSuffix(out, "/"))+".md")
}
