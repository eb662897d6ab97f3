package audit

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/cardvault/cardvault/internal/wire"
	"github.com/google/uuid"
)

// A LedgerDir is a [Ledger] in a folder: DIR/VAULT/ACCOUNT/NUMBER-RANDOM.ledger, where NUMBER is the
// first checkpoint in the file. Put it on another machine or volume than the store.
//
// A file has parts as they came, one behind the other, and ends at 16 MiB or a little more. A part is
// durable before Append returns. The part that a killed process or a power cut has left unfinished
// counts for nothing.
//
// Several processes may use one folder. Each adds to files of its own, so no lock is needed, and a part
// can be there twice. Files may be removed while it is in use, such as those from before the last
// backup that would be restored; the folder of an account whose parts it has kept is an error when
// it is gone, as after an unmount. Only the user of the vault may write below DIR: a folder that others
// may write to takes no part, since they could remove its files. Where they may read it, a warning
// is logged. [LedgerDir.Exports] takes any folder, as its parts are verified.
type LedgerDir struct {
	Logger *slog.Logger // if nil, slog.Default; set it before the first call

	path   string
	warned sync.Once

	mu   sync.Mutex
	logs map[logOf]*ledgerLog
}

var _ Ledger = (*LedgerDir)(nil)

// A logOf names the log of an account.
type logOf struct{ vault, account uuid.UUID }

// A ledgerLog is the log of an account, as this process knows it.
type ledgerLog struct {
	mu    sync.Mutex
	asked bool
	last  Mark   // that is kept, once asked
	file  string // to which this process adds; "": it begins one
	size  int64
}

const (
	ledgerSuffix = ".ledger"
	exportSuffix = ".jsonl"

	ledgerFileBytes = 16 << 20 // after which a file has no further part
	mostLedgerBytes = 64 << 20 // of a file that is read
	mostLedgerLogs  = 1 << 16  // that a process remembers
)

// NewLedgerDir returns the ledger in a folder, which has to be there when a part comes: so a volume
// that is not mounted is an error.
func NewLedgerDir(path string) *LedgerDir {
	return &LedgerDir{path: path, logs: map[logOf]*ledgerLog{}}
}

func (l *LedgerDir) log(of logOf) *ledgerLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.logs[of] == nil {
		for old, log := range l.logs {
			if len(l.logs) < mostLedgerLogs {
				break
			}
			if log.mu.TryLock() { // it begins a file when it is used again
				log.mu.Unlock()
				delete(l.logs, old)
			}
		}
		l.logs[of] = new(ledgerLog)
	}
	return l.logs[of]
}

func (l *LedgerDir) folder(of logOf) string {
	return filepath.Join(l.path, of.vault.String(), of.account.String())
}

// check returns an error if the folder is not there, or if others may write to it.
func (l *LedgerDir) check() error {
	info, err := os.Stat(l.path)
	if err != nil || runtime.GOOS == "windows" {
		return err
	}
	switch perm := info.Mode().Perm(); {
	case perm&0o022 != 0:
		return fmt.Errorf("audit: other users may write to the folder of the ledger (mode %#o): look for parts that are missing, and make it 0700", perm)
	case perm&0o077 != 0:
		l.warned.Do(func() {
			log := l.Logger
			if log == nil {
				log = slog.Default()
			}
			log.Warn("the folder of the ledger is open to other users: set its mode to 0700", "path", l.path)
		})
	}
	return nil
}

// Append implements [Ledger].
func (l *LedgerDir) Append(ctx context.Context, p *Part) error {
	if !wholePart(p.Export) {
		return errors.New("audit: the part is not a whole export")
	}
	of := logOf{p.VaultID, p.AccountID}
	log := l.log(of)
	log.mu.Lock()
	defer log.mu.Unlock()
	if !log.asked {
		last, err := l.Last(ctx, p.VaultID, p.AccountID)
		if err != nil {
			return err
		}
		log.asked, log.last = true, last
	}
	if err := ctx.Err(); err != nil {
		return err
	}

	if p.Last.Number <= log.last.Number {
		return nil
	}
	err := l.check()
	if err != nil {
		return err
	}
	err = errNoFile
	if log.file != "" && log.size < ledgerFileBytes {
		err = log.add(p.Export)
	}
	if errors.Is(err, errNoFile) {
		err = l.begin(log, of, p)
	}
	if err != nil {
		return err
	}
	log.last, log.size = p.Last, log.size+int64(len(p.Export))
	return nil
}

var errNoFile = errors.New("audit: there is no file")

// add adds a part to the file. After an error nothing is added any more, since the file may end with a
// piece of the part.
func (g *ledgerLog) add(export []byte) error {
	if info, err := os.Lstat(g.file); errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return errNoFile // it was removed or replaced
	}
	f, err := os.OpenFile(g.file, os.O_WRONLY|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return errNoFile
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if !g.named(f) {
		return errNoFile
	}

	_, err = f.Write(export)
	if err = errors.Join(err, f.Sync()); err != nil {
		_ = f.Truncate(g.size) // a rest counts for nothing
		g.file = ""
		return err
	}
	if !g.named(f) { // removed meanwhile, and the part with it
		return errNoFile
	}
	return nil
}

// named reports whether f is the file that has the name.
func (g *ledgerLog) named(f *os.File) bool {
	mine, err := f.Stat()
	there, e := os.Lstat(g.file)
	return err == nil && e == nil && os.SameFile(mine, there)
}

// begin begins a file with a part.
func (l *LedgerDir) begin(log *ledgerLog, of logOf, p *Part) error {
	log.file = ""
	if err := l.check(); err != nil {
		return err
	}
	folder := l.folder(of)
	if _, err := os.Stat(folder); err != nil && log.last.Number > 0 {
		return err // it has kept parts: what is at path now is not the ledger
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}

	path := filepath.Join(folder, fmt.Sprintf("%020d-%s%s", p.First, rand.Text(), ledgerSuffix))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(p.Export)
	err = errors.Join(err, f.Sync(), f.Close())
	for _, dir := range []string{folder, filepath.Dir(folder), l.path} { // whose names may be new
		err = errors.Join(err, syncDir(dir))
	}
	if err != nil {
		_ = os.Remove(path) // a rest counts for nothing
		return err
	}
	log.file, log.size = path, 0
	return nil
}

func syncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil // where a folder cannot be synced
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Last implements [Ledger]. It reads the ends of the account's files. The mark of a checkpoint that the
// vault could not read is not in a part: the part comes again.
func (l *LedgerDir) Last(ctx context.Context, vault, account uuid.UUID) (last Mark, err error) {
	if err := l.check(); err != nil {
		return last, err
	}

	folder := l.folder(logOf{vault, account})
	files, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return last, err
	}
	for _, f := range files {
		if filepath.Ext(f.Name()) != ledgerSuffix || !f.Type().IsRegular() {
			continue
		}
		m, err := lastMark(filepath.Join(folder, f.Name()))
		if err = errors.Join(ctx.Err(), err); err != nil {
			return Mark{}, err
		}
		if m.Number > last.Number {
			last = m
		}
	}
	return last, nil
}

// lastMark returns the mark of the last whole part of a file with a checkpoint.
func lastMark(path string) (m Mark, err error) {
	f, err := os.Open(path)
	if err != nil {
		return m, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return m, err
	}

	for window := int64(128 << 10); ; window *= 4 { // mostly the last part is a few kilobytes
		text := make([]byte, min(window, size, mostLedgerBytes))
		if _, err := f.ReadAt(text, size-int64(len(text))); err != nil {
			return m, err
		}
		for _, s := range slices.Backward(spansOf(text)) {
			if part := text[s.from:s.to]; wholePart(part) {
				if m, ok := markOf(part); ok {
					return m, nil
				}
			}
		}
		if int64(len(text)) == min(size, mostLedgerBytes) {
			return m, nil
		}
	}
}

// A textSpan is where a part is in a text.
type textSpan struct{ from, to int }

var beginsPart, endsPart, beginsCheckpoint = []byte(`{"export":`), []byte(`{"end":`), []byte(`{"checkpoint":`)

// spansOf returns where parts are in a text, from a line that begins one to the next that ends one.
func spansOf(text []byte) (all []textSpan) {
	from, at := -1, 0
	for row := range bytes.Lines(text) {
		if bytes.HasPrefix(row, beginsPart) {
			from = at
		}
		at += len(row)
		if from >= 0 && bytes.HasPrefix(row, endsPart) && row[len(row)-1] == '\n' {
			all = append(all, textSpan{from, at})
			from = -1
		}
	}
	return all
}

// wholePart reports whether a part has the content that its last line names.
func wholePart(text []byte) bool {
	before := bytes.TrimSuffix(text, []byte("\n"))
	if len(before) == len(text) {
		return false
	}
	last := bytes.LastIndexByte(before, '\n') + 1
	l := new(line)
	if wire.Read("line", before[last:], l) != nil || l.End == nil {
		return false
	}
	sum := sha256.Sum256(text[:last])
	return hex.EncodeToString(sum[:]) == l.End.Sum
}

// markOf returns the mark of a whole part, false if it has no checkpoint.
func markOf(part []byte) (m Mark, ok bool) {
	at := bytes.LastIndex(part, slices.Concat([]byte("\n"), beginsCheckpoint)) + 1
	if at == 0 {
		return m, false
	}
	text, _, _ := bytes.Cut(part[at:], []byte("\n"))
	l := new(line)
	if wire.Read("line", text, l) != nil || l.Checkpoint == nil {
		return m, false
	}
	return Mark{l.Checkpoint.Number, l.Checkpoint.Hash()}, true
}

// Exports returns the parts in the folder and below it, each as an export of its own, for
// cardvault.DeletionLedger. Files *.jsonl that were put there, each with one export of
// Vault.ExportAudit, are among them. An unfinished part is left out; nothing else is verified.
//
// It reads each file once, and has none open. An export opens its file when it is read.
func (l *LedgerDir) Exports(ctx context.Context) (all []io.ReadSeeker, err error) {
	err = fs.WalkDir(os.DirFS(l.path), ".", func(name string, d fs.DirEntry, err error) error {
		if err = errors.Join(ctx.Err(), err); err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}

		path := filepath.Join(l.path, filepath.FromSlash(name))
		switch filepath.Ext(name) {
		case exportSuffix:
			info, err := os.Stat(path)
			if err == nil {
				all = append(all, io.NewSectionReader(shutFile(path), 0, info.Size()))
			}
			return err

		case ledgerSuffix:
			text, err := readLedgerFile(path)
			if err != nil {
				return err
			}
			for _, s := range finished(text) {
				all = append(all, io.NewSectionReader(shutFile(path), int64(s.from), int64(s.to-s.from)))
			}
		}
		return nil
	})
	return all, err
}

func readLedgerFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostLedgerBytes+1))
	if err == nil && len(text) > mostLedgerBytes {
		err = fmt.Errorf("audit: %s is larger than a ledger makes it", path)
	}
	return text, err
}

// finished returns the parts of a file up to the last whole one. Text between two of them belongs to
// the second, which Verify refuses then.
func finished(text []byte) []textSpan {
	all := spansOf(text)
	for len(all) > 0 && !wholePart(text[all[len(all)-1].from:all[len(all)-1].to]) {
		all = all[:len(all)-1]
	}
	before := 0
	for i := range all {
		all[i].from, before = before, all[i].to
	}
	return all
}

// A shutFile is open during ReadAt alone: a ledger may have many.
type shutFile string

// ReadAt implements io.ReaderAt.
func (f shutFile) ReadAt(b []byte, offset int64) (int, error) {
	file, err := os.Open(string(f))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return file.ReadAt(b, offset)
}
