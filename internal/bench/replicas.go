package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/bench/table"
	"github.com/cardvault/cardvault/internal/realtest"
	"github.com/cardvault/cardvault/store/pgstore"
)

// A process is another one with the vault in PostgreSQL. It makes calls while it is
// asked to, 64 at a time.
type process struct {
	cmd *exec.Cmd
	in  *json.Encoder
	out *bufio.Reader
}

// A stint of a replica is the calls of a while.
type stint struct {
	Do  string        // import or get
	For time.Duration // how long

	Calls int
	CPU   time.Duration // of the processor, by the replica
}

// startReplicas starts processes that stop when they are closed.
func startReplicas(url string, n int, open *closers) (all []*process, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}

	for range n {
		cmd := exec.Command(self, "-replica", "serve")
		cmd.Env = append(os.Environ(), "BENCH_POSTGRES="+url)
		cmd.Stderr = os.Stderr

		in, err := cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}

		open.later(func() error { return errors.Join(in.Close(), cmd.Wait()) })
		all = append(all, &process{cmd, json.NewEncoder(in), bufio.NewReader(out)})
	}
	return all, nil
}

// together has replicas make calls at the same time, and returns their sum. The processor's
// time includes that of the server, if it runs here.
func together(ctx context.Context, pool *pgxpool.Pool, replicas []*process, asked stint) (sum stint, err error) {
	before := serverTime(ctx, pool)
	for _, r := range replicas {
		if err := r.in.Encode(asked); err != nil {
			return sum, err
		}
	}
	for _, r := range replicas {
		line, err := r.out.ReadBytes('\n')
		if err != nil {
			return sum, err
		}
		var done stint
		if err := json.Unmarshal(line, &done); err != nil {
			return sum, err
		}
		sum.Calls, sum.CPU = sum.Calls+done.Calls, sum.CPU+done.CPU
	}
	sum.CPU += serverTime(ctx, pool) - before
	return sum, nil
}

// serverTime returns what the processes of the server have taken of the processor, or zero
// if they cannot be seen from here. Connections must stay open between two looks.
func serverTime(ctx context.Context, pool *pgxpool.Pool) (took time.Duration) {
	rows, err := pool.Query(ctx, "SELECT pid FROM pg_stat_activity")
	if err != nil {
		return 0
	}
	defer rows.Close()

	for rows.Next() {
		var pid int
		if rows.Scan(&pid) != nil {
			return 0
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}

		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		for _, field := range fields[11:13] { // utime and stime, in hundredths of a second
			ticks, err := strconv.Atoi(field)
			if err != nil {
				return 0
			}
			took += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return took
}

// runReplica is a replica: it takes turns from its input until that ends.
func runReplica(ctx context.Context, url, _ string) (err error) {
	var open closers
	defer open.close(&err)
	pool, err := pooled(ctx, url, &open)
	if err != nil {
		return err
	}
	vault, err := openedOn(ctx, pool, &pgstore.Options{Schema: schema, AllowPlaintext: true}, &open)
	if err != nil {
		return err
	}
	first, err := vault.List(ctx, &cardvault.TokenListOptions{Limit: cardvault.MaxLimit})
	if err != nil {
		return err
	}

	orders := json.NewDecoder(os.Stdin)
	for orders.More() {
		var t stint
		if err := orders.Decode(&t); err != nil {
			return err
		}
		before, err := processTime()
		if err != nil {
			return err
		}

		_, latencies, err := rate(64, t.For, func(int) error {
			if t.Do == "get" {
				_, err := vault.Get(ctx, first.Items[rand.IntN(len(first.Items))].ID)
				return err
			}
			_, err := vault.Import(ctx, testCard(0), nil)
			return err
		})
		if err != nil {
			return err
		}
		after, err := processTime()
		if err != nil {
			return err
		}
		t.Calls, t.CPU = len(latencies), after-before
		if err := json.NewEncoder(os.Stdout).Encode(t); err != nil {
			return err
		}
	}
	return nil
}

// replicas measures one and three processes on one PostgreSQL, with a hundredth, a tenth
// and all of the tokens.
func (b *bench) replicas(ctx context.Context) (err error) {
	var open closers
	defer open.close(&err)
	url, err := b.server(&open)
	if realtest.Missing(err) {
		b.notRun(err.Error(), "three processes", "one process", nil, "replicas-import/3", "replicas-get/3")
		return nil
	}
	if err != nil {
		return err
	}
	pool, err := pooled(ctx, url, &open)
	if err != nil {
		return err
	}
	drop := func() error {
		_, err := pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+schema+" CASCADE")
		return err
	}
	if err := drop(); err != nil {
		return err
	}
	open.later(drop)

	opts := &pgstore.Options{Schema: schema, AllowPlaintext: true}
	if err := pgstore.Migrate(ctx, pool, opts); err != nil {
		return err
	}
	vault, err := openedOn(ctx, pool, opts, &open)
	if err != nil {
		return err
	}

	filled := 0
	var costs [2][]float64 // by size: import, get
	for _, size := range []int{b.table.Tokens / 100, b.table.Tokens / 10, b.table.Tokens} {
		var tokens supply[uuid.UUID]
		if err := tokens.fill(max(0, size-filled), func() (uuid.UUID, error) {
			_, err := vault.Import(ctx, testCard(0), bulk)
			return uuid.Nil, err
		}); err != nil {
			return err
		}
		if filled, err = b.measureReplicas(ctx, url, pool, vault, size, &costs); err != nil {
			return err
		}
	}
	for i, name := range []string{"import", "get"} {
		c := costs[i]
		b.figures("replicas-slope-"+name, "", reported, name+"s a core-second with all tokens / with a hundredth", c[len(c)-1]/c[0])
	}
	return nil
}

// measureReplicas measures a vault of a size, and returns how many tokens it has then.
func (b *bench) measureReplicas(ctx context.Context, url string, pool *pgxpool.Pool, vault *cardvault.Vault, size int, costs *[2][]float64) (tokens int, err error) {
	var open closers
	defer open.close(&err)
	if _, err := pool.Exec(ctx, "VACUUM ANALYZE "+schema+".records"); err != nil {
		return 0, err
	}
	all, err := startReplicas(url, 3, &open)
	if err != nil {
		return 0, err
	}

	for i, do := range []string{"import", "get"} {
		rates := map[int][]float64{}
		var perCore []float64
		for range b.table.Rounds {
			for _, n := range []int{1, 3} {
				sum, err := together(ctx, pool, all[:n], stint{Do: do, For: b.span})
				if err != nil {
					return 0, err
				}
				rates[n] = append(rates[n], float64(sum.Calls)/b.span.Seconds())
				if n == 1 && sum.CPU > 0 {
					perCore = append(perCore, float64(sum.Calls)/sum.CPU.Seconds())
				}
			}
		}

		suffix := ""
		if size < b.table.Tokens {
			suffix = fmt.Sprint("-", size)
		}
		for _, n := range []int{1, 3} {
			b.figures(fmt.Sprintf("replicas-%s/%d%s", do, n, suffix), "/s", reported, fmt.Sprintf("%ss, %d processes of 64 goroutines, %d tokens", do, n, size), rates[n]...)
		}
		if len(perCore) > 0 {
			b.figures(fmt.Sprintf("replicas-%s-core%s", do, suffix), "", reported, fmt.Sprintf("%ss a second of a core, vault and server, %d tokens", do, size), perCore...)
			costs[i] = append(costs[i], table.Median(perCore))
		}
	}
	return b.bytesOfToken(ctx, pool, vault, size)
}

// bytesOfToken measures the room that a token takes, and returns how many there are.
func (b *bench) bytesOfToken(ctx context.Context, pool *pgxpool.Pool, vault *cardvault.Vault, size int) (tokens int, err error) {
	first, err := vault.List(ctx, &cardvault.TokenListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	var bytes int64
	if err := pool.QueryRow(ctx, `SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname <> 'groups'`, schema).Scan(&bytes); err != nil {
		return 0, err
	}
	if size == b.table.Tokens {
		b.figures("replicas-bytes", "B", reported, fmt.Sprintf("tables and indexes, a token of %d", first.TotalItems), float64(bytes)/float64(first.TotalItems))
	}
	return int(first.TotalItems), nil
}
