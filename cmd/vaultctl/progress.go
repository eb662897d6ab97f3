package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// A progress shows how far a command has come: as a bar on a terminal, else as a line each
// time that a tenth of it is done.
type progress struct {
	to    io.Writer // nil: nowhere
	bar   bool
	what  string
	total int64
	shown string
}

// progress returns the progress of a command that does something total times. The caller
// calls end.
func (c *cli) progress(what string, total int64) *progress {
	p := &progress{to: c.errs, what: what, total: total}
	f, ok := c.errs.(*os.File)
	p.bar = ok && term.IsTerminal(int(f.Fd()))
	return p
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
	if text == p.shown {
		return
	}

	p.shown = text
	if !p.bar {
		text += "\n"
	}
	fmt.Fprint(p.to, text)
}

// end ends the line of a bar.
func (p *progress) end() {
	if p.bar && p.shown != "" {
		fmt.Fprintln(p.to)
		p.shown = ""
	}
}
