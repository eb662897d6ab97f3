package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cardvault/cardvault"
	"golang.org/x/term"
)

// A progress shows how far a command has come: as a bar on a terminal, else as a line each
// time that a tenth of it is done. Without a known total it shows the work so far, elsewhere
// every ten seconds.
type progress struct {
	to    io.Writer // nil: nowhere
	bar   bool
	what  string
	total int64
	shown string
	last  time.Time // of sofar, or when the command began
}

// progress returns the progress of a command that does something total times. The caller
// calls end.
func (c *cli) progress(what string, total int64) *progress {
	return &progress{to: c.errs, bar: isTerminal(c.errs), what: what, total: total, last: time.Now()}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

const barWidth = 40

// left shows the progress when n are left.
func (p *progress) left(n int64) {
	done := max(0, p.total-n)
	part := float64(done) / float64(max(p.total, 1))
	text := fmt.Sprintf("%3.0f%% of %d %s", float64(int(part*10))*10, p.total, p.what)
	if p.bar {
		filled := int(part * barWidth)
		text = fmt.Sprintf("\r[%s%s] %d of %d %s", strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), done, p.total, p.what)
	}
	p.show(text)
}

func (p *progress) show(text string) {
	if text == p.shown {
		return
	}
	p.shown = text
	if !p.bar {
		text += "\n"
	}
	fmt.Fprint(p.to, text)
}

const lineEvery = 10 * time.Second

// moved shows the progress of a backup.
func (p *progress) moved(at cardvault.BackupProgress) {
	p.sofar(fmt.Sprintf("%d records, %s", at.Records, size(at.Bytes)))
}

// verified shows the progress of a verification.
func (p *progress) verified(at cardvault.VerifyProgress) {
	text := fmt.Sprintf("%d records, %d findings", at.Records, at.Found)
	switch {
	case at.Indexes:
		text += "; all records were read"
	case at.Sums:
		text += "; sums are compared"
	}
	p.sofar(text)
}

// repaired shows the progress of a repair.
func (p *progress) repaired(at cardvault.RepairProgress) {
	text := fmt.Sprintf("%d records, %d findings", at.Records, at.Found)
	switch {
	case at.Mending:
		text += "; the indexes are made anew"
	case at.Again:
		text += "; the indexes are compared once more"
	}
	p.sofar(text)
}

// sofar shows the progress of work whose total is not known.
func (p *progress) sofar(text string) {
	switch {
	case p.bar:
		p.show("\r" + text)
	case time.Since(p.last) >= lineEvery:
		p.last = time.Now()
		p.show(text)
	}
}

// size returns a number of bytes as text.
func size(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// end ends the line of a bar.
func (p *progress) end() {
	if p.bar && p.shown != "" {
		fmt.Fprintln(p.to)
		p.shown = ""
	}
}
