// Package table judges figures that were taken in rounds, and shows them as text, JSON,
// Markdown and plots.
package table

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// A Table holds the rows of one run.
type Table struct {
	Machine Machine `json:"machine"`
	Tokens  int     `json:"tokens"` // in the vault
	Rounds  int     `json:"rounds"`
	Span    string  `json:"span"` // duration of one measurement of a round
	Rows    []*Row  `json:"rows"`
}

// A Row compares one thing with another, in rounds.
type Row struct {
	Part    string  `json:"part"`    // selects the row on the command line
	Name    string  `json:"name"`    // is the same in every run
	What    string  `json:"what"`    // is measured
	Against string  `json:"against"` // "" if nothing is compared
	At      int     `json:"at"`      // goroutines or connections; 0 if that says nothing
	Unit    string  `json:"unit"`    // "" for a ratio
	Goal    Goal    `json:"goal"`
	Rounds  []Round `json:"rounds,omitempty"`
	NotRun  string  `json:"not_run,omitempty"` // the reason
}

// A Round is what one round has measured. Only Figure is judged.
type Round struct {
	Figure     float64 `json:"figure"`
	Ours       float64 `json:"ours,omitempty"`    // calls a second
	Against    float64 `json:"against,omitempty"` // calls a second
	OursP99    float64 `json:"ours_p99_ms,omitempty"`
	AgainstP99 float64 `json:"against_p99_ms,omitempty"`
}

// A Goal bounds the median of the figures. The zero Goal bounds nothing.
type Goal struct {
	AtLeast float64 `json:"at_least,omitempty"`
	AtMost  float64 `json:"at_most,omitempty"`
}

// String returns the bound, or "".
func (g Goal) String() string {
	switch {
	case g.AtLeast > 0:
		return "at least " + number(g.AtLeast)
	case g.AtMost > 0:
		return "at most " + number(g.AtMost)
	}
	return ""
}

// short returns how much a figure misses, and at most 0 if it misses nothing.
func (g Goal) short(figure float64) float64 {
	if g.AtMost > 0 {
		return figure - g.AtMost
	}
	return g.AtLeast - figure
}

// A Verdict judges a row.
type Verdict int

// The verdicts, the best first.
const (
	Reached      Verdict = iota
	Reported             // there is no goal
	Unmeasured           // it was not run
	WithinSpread         // short, by less than the figures of the rounds differ
	Short
)

// String returns the verdict as tables show it.
func (v Verdict) String() string {
	return [...]string{"reached", "", "not run", "short, by less than its spread", "short"}[v]
}

// Verdict judges the median of the figures.
func (r *Row) Verdict() Verdict {
	short := r.Goal.short(r.Median())
	switch {
	case len(r.Rounds) == 0:
		return Unmeasured
	case r.Goal == Goal{}:
		return Reported
	case short <= 0:
		return Reached
	case short < r.Spread():
		return WithinSpread
	}
	return Short
}

// Median returns the median of the figures.
func (r *Row) Median() float64 { return Median(r.figures()) }

// Spread returns the distance between the quartiles of the figures. One disturbed round of
// five does not change it.
func (r *Row) Spread() float64 {
	low, high := r.Quartiles()
	return high - low
}

// Quartiles returns the lower and the upper quartile of the figures.
func (r *Row) Quartiles() (low, high float64) {
	figures := r.figures()
	return Quantile(figures, .25), Quantile(figures, .75)
}

func (r *Row) figures() []float64 { return r.each(func(d Round) float64 { return d.Figure }) }

func (r *Row) each(of func(Round) float64) []float64 {
	values := make([]float64, len(r.Rounds))
	for i, d := range r.Rounds {
		values[i] = of(d)
	}
	return values
}

// Median returns the median of values, the mean of two if they are even in number.
func Median(values []float64) float64 { return Quantile(values, .5) }

// Quantile returns the value below which a share q of the values lie, interpolated between
// the two nearest. Without values it returns 0.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// String returns the row as a line of text.
func (r *Row) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-28s ", r.Name)
	if len(r.Rounds) == 0 {
		return b.String() + "not run: " + r.NotRun
	}

	low, high := r.Quartiles()
	fmt.Fprintf(&b, "%8s %-6s (%s to %s)", number(r.Median()), r.Unit, number(low), number(high))
	if goal := r.Goal.String(); goal != "" {
		fmt.Fprintf(&b, "  goal %s: %s", goal, r.Verdict())
	}
	fmt.Fprintf(&b, "  %s", r.What)
	if ours := r.ours(); ours != "" {
		b.WriteString(" " + ours)
	}
	if r.Against != "" {
		fmt.Fprintf(&b, " / %s %s", r.Against, r.against())
	}
	return b.String()
}

// ours returns the rate of the measured thing and its 99th percentile.
func (r *Row) ours() string {
	return pace(r.each(func(d Round) float64 { return d.Ours }), r.each(func(d Round) float64 { return d.OursP99 }))
}

// against returns the same of the other thing.
func (r *Row) against() string {
	return pace(r.each(func(d Round) float64 { return d.Against }), r.each(func(d Round) float64 { return d.AgainstP99 }))
}

func pace(rates, p99 []float64) string {
	rate := Median(rates)
	if rate == 0 {
		return ""
	}
	return fmt.Sprintf("%s/s, p99 %s ms", thousands(rate), number(Median(p99)))
}

// number returns three digits that count.
func number(f float64) string {
	if f == 0 {
		return "0"
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(f))))
	return strconv.FormatFloat(f, 'f', min(max(digits, 0), 3), 64)
}

// thousands returns a whole number with commas.
func thousands(f float64) string {
	s := strconv.FormatFloat(f, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Encode returns t as JSON. Numbers have four digits that count.
func (t *Table) Encode() ([]byte, error) {
	short := *t
	short.Rows = nil
	for _, r := range t.Rows {
		rounded := *r
		rounded.Rounds = slices.Clone(r.Rounds)
		for i := range rounded.Rounds {
			d := &rounded.Rounds[i]
			for _, f := range []*float64{&d.Figure, &d.Ours, &d.Against, &d.OursP99, &d.AgainstP99} {
				*f = significant(*f)
			}
		}
		short.Rows = append(short.Rows, &rounded)
	}

	text, err := json.MarshalIndent(short, "", "\t")
	return append(text, '\n'), err
}

// significant rounds to four digits that count.
func significant(f float64) float64 {
	f, err := strconv.ParseFloat(strconv.FormatFloat(f, 'g', 4, 64), 64)
	if err != nil {
		return 0 // out of range after rounding
	}
	return f
}

// Read returns a table that Encode has written to a file.
func Read(file string) (*Table, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	t := new(Table)
	if err := json.Unmarshal(text, t); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return t, nil
}

// Count returns a sentence on how many rows have which verdict.
func (t *Table) Count() string {
	var counts [Short + 1]int
	for _, r := range t.Rows {
		counts[r.Verdict()]++
	}
	return fmt.Sprintf("%d rows reach their goal, %d are short, %d are short by less than their spread, %d were not run; %d have no goal.",
		counts[Reached], counts[Short], counts[WithinSpread], counts[Unmeasured], counts[Reported])
}

// Size returns the number of tokens in short: 10k, 1M.
func (t *Table) Size() string {
	switch {
	case t.Tokens >= 1e6 && t.Tokens%1e6 == 0:
		return strconv.Itoa(t.Tokens/1e6) + "M"
	case t.Tokens >= 1e3 && t.Tokens%1e3 == 0:
		return strconv.Itoa(t.Tokens/1e3) + "k"
	}
	return strconv.Itoa(t.Tokens)
}
