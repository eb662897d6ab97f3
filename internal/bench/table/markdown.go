package table

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The generated part of a document stands between these lines.
const (
	begin = "<!-- tables: make bench -->\n"
	end   = "<!-- end of tables -->\n"
)

// Store writes t below dir as JSON and plots, and all tables that are there into the
// document between its marks.
func (t *Table) Store(dir, document string) error {
	text, err := t.Encode()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, t.Size()+".json"), text, 0o644); err != nil {
		return err
	}

	plots, err := t.plots()
	if err != nil {
		return err
	}
	for name, svg := range plots {
		if err := os.WriteFile(filepath.Join(dir, name), svg, 0o644); err != nil {
			return err
		}
	}
	return rewrite(dir, document)
}

// rewrite puts the tables of dir into the document, the smallest first.
func rewrite(dir, document string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	var all []*Table
	for _, file := range files {
		t, err := Read(file)
		if err != nil {
			return err
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *Table) int { return a.Tokens - b.Tokens })

	var tables bytes.Buffer
	for _, t := range all {
		t.markdown(&tables, filepath.Base(dir))
	}

	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(text, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !ok || !closed {
		return fmt.Errorf("%s has no lines %q and %q", document, begin, end)
	}
	return os.WriteFile(document, slices.Concat(before, []byte(begin), tables.Bytes(), []byte(end), after), 0o644)
}

// markdown writes the rows of each part as a table. Files are linked in folder.
func (t *Table) markdown(b *bytes.Buffer, folder string) {
	fmt.Fprintf(b, "\n## %s tokens\n\nMeasured on %s. Each figure is the median of %d rounds of %s. %s [As JSON](%s/%s.json).\n",
		t.Size(), t.Machine, t.Rounds, t.Span, t.Count(), folder, t.Size())
	fmt.Fprintf(b, "\n![Figures against their goals](%s/%s-goals.svg)\n\n![Ratios by connections](%[1]s/%[2]s-ratios.svg)\n", folder, t.Size())

	part := ""
	for _, r := range t.Rows {
		if r.Part != part {
			part = r.Part
			fmt.Fprintf(b, "\n### %s, %s tokens\n\n| Row | Measured | Against | Figure | Quartiles | Goal | |\n|---|---|---|---|---|---|---|\n", part, t.Size())
		}
		fmt.Fprintf(b, "| %s |\n", strings.Join(r.cells(), " | "))
	}
	b.WriteByte('\n')
}

// cells returns the columns of a row in Markdown.
func (r *Row) cells() []string {
	if len(r.Rounds) == 0 {
		return []string{r.Name, r.What, r.Against, "", "", r.Goal.String(), "not run: " + r.NotRun}
	}
	join := func(what, rate string) string {
		if rate == "" {
			return what
		}
		return what + ": " + rate
	}
	low, high := r.Quartiles()
	verdict := r.Verdict().String()
	if r.Verdict() >= WithinSpread {
		verdict = "**" + verdict + "**"
	}
	return []string{r.Name, join(r.What, r.ours()), join(r.Against, r.against()), strings.TrimSpace(number(r.Median()) + " " + r.Unit),
		number(low) + " to " + number(high), r.Goal.String(), verdict}
}
