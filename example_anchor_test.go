package cardvault_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"sync"

	"github.com/cardvault/cardvault"
)

// A store that was rolled back is refused, and is taken on purpose by the name of the difference.
func ExampleAnchorDir() {
	ctx, dir := context.Background(), temporary()
	defer os.RemoveAll(dir)
	keys, err := cardvault.KeyFile(filepath.Join(dir, "vault.key"), nil)
	if err != nil {
		log.Fatal(err)
	}
	folder := filepath.Join(dir, "anchor") // in production, on another volume
	if err := os.Mkdir(folder, 0o700); err != nil {
		log.Fatal(err)
	}
	opts := &cardvault.Options{Anchor: cardvault.AnchorDir(folder)}
	use := func() {
		v, err := cardvault.Open(ctx, filepath.Join(dir, "vault"), keys, opts)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := v.RotateKeys(ctx, nil); err != nil {
			log.Fatal(err)
		}
		if err := v.Close(); err != nil {
			log.Fatal(err)
		}
	}

	use()
	file := filepath.Join(dir, "vault", "cardvault.db")
	former, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	use()
	if err := os.WriteFile(file, former, 0o600); err != nil { // a backup of the file is put back
		log.Fatal(err)
	}

	_, err = cardvault.Open(ctx, filepath.Join(dir, "vault"), keys, opts)
	rollback, ok := errors.AsType[*cardvault.RollbackError](err)
	if !ok {
		log.Fatal(err)
	}
	fmt.Println(rollback.Reason)

	opts.AcceptRollback = rollback.ID // after a person has decided so
	use()
	// Output:
	// it is older than its anchor
}

// An anchorRow is an Anchor in a row of a database, which another operator than the store's should
// have:
//
//	CREATE TABLE anchors (name text PRIMARY KEY, number numeric(20) NOT NULL, text text NOT NULL)
type anchorRow struct {
	db   *sql.DB
	name string
}

var _ cardvault.Anchor = anchorRow{}

func (r anchorRow) Load(ctx context.Context) (text []byte, err error) {
	err = r.db.QueryRowContext(ctx, "SELECT text FROM anchors WHERE name = $1", r.name).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return text, err
}

func (r anchorRow) Advance(ctx context.Context, number uint64, text []byte) error {
	_, err := r.db.ExecContext(ctx, `INSERT INTO anchors AS a VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE SET number = excluded.number, text = excluded.text WHERE a.number < excluded.number`,
		r.name, fmt.Sprint(number), string(text))
	return err
}

// An anchorLog is an Anchor in a log to which can only be added, such as a file with the attribute
// append-only, or an object store with retention. The highest number counts.
type anchorLog struct {
	mu   sync.Mutex
	file *os.File // opened with os.O_APPEND
}

var _ cardvault.Anchor = &anchorLog{}

func (l *anchorLog) Load(context.Context) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, text, err := l.last()
	return text, err
}

func (l *anchorLog) Advance(_ context.Context, number uint64, text []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, _, err := l.last(); err != nil || last >= number {
		return err
	}
	// A line that a crash has cut off lacks the dot, and does not go on in this one.
	_, err := fmt.Fprintf(l.file, "\n%d %s .\n", number, text)
	return errors.Join(err, l.file.Sync())
}

func (l *anchorLog) last() (number uint64, text []byte, err error) {
	lines := bufio.NewScanner(io.NewSectionReader(l.file, 0, 1<<62))
	for lines.Scan() {
		var n uint64
		var t string
		if _, err := fmt.Sscanf(lines.Text(), "%d %s .", &n, &t); err == nil && n > number {
			number, text = n, []byte(t)
		}
	}
	return number, text, lines.Err()
}

// An anchor can be a row of a database, or a log to which can only be added.
func ExampleAnchor() {
	ctx, dir := context.Background(), temporary()
	defer os.RemoveAll(dir)
	file, err := os.OpenFile(filepath.Join(dir, "anchor.log"), os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	keys, err := cardvault.KeyFile(filepath.Join(dir, "vault.key"), nil)
	if err != nil {
		log.Fatal(err)
	}

	v, err := cardvault.Open(ctx, filepath.Join(dir, "vault"), keys, &cardvault.Options{Anchor: &anchorLog{file: file}})
	if err != nil {
		log.Fatal(err)
	}
	if err := v.Close(); err != nil {
		log.Fatal(err)
	}
	number, text, err := (&anchorLog{file: file}).last()
	fmt.Println(number, len(text) > 0, err)
	// Output:
	// 2 true <nil>
}
