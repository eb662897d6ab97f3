package table

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// rounds returns a row whose rounds have these figures.
func rounds(goal Goal, figures ...float64) *Row {
	r := &Row{Part: "import", Name: "import/64", What: "Import", Against: "append-only bbolt loop", At: 64, Goal: goal}
	for _, f := range figures {
		r.Rounds = append(r.Rounds, Round{Figure: f, Ours: f * 1000, Against: 1000, OursP99: 1.5, AgainstP99: .5})
	}
	return r
}

func TestVerdict(t *testing.T) {
	least, most := Goal{AtLeast: .6}, Goal{AtMost: 1.2}
	for name, test := range map[string]struct {
		row  *Row
		want Verdict
	}{
		"reached":                          {rounds(least, .7, .6, .5, .6, .9), Reached},
		"short":                            {rounds(least, .50, .51, .49, .50, .50), Short},
		"short by less than its spread":    {rounds(least, .50, .59, .70, .58, .65, .55), WithinSpread},
		"a disturbed round excuses nobody": {rounds(least, .50, .51, 5, .50, .50), Short},
		"at most, reached":                 {rounds(most, 1.1, 1.2, 1.3), Reached},
		"at most, short":                   {rounds(most, 1.5, 1.51, 1.49), Short},
		"at most, within the spread":       {rounds(most, 1.1, 1.25, 1.5), WithinSpread},
		"one round has no spread":          {rounds(least, .599), Short},
		"no goal":                          {rounds(Goal{}, .1), Reported},
		"no rounds":                        {rounds(least), Unmeasured},
	} {
		if got := test.row.Verdict(); got != test.want {
			t.Errorf("%s: %v, want %v: median %v, spread %v", name, got, test.want, test.row.Median(), test.row.Spread())
		}
	}
}

func TestQuantile(t *testing.T) {
	for _, test := range []struct {
		values []float64
		q      float64
		want   float64
	}{
		{nil, .5, 0},
		{[]float64{3}, .5, 3},
		{[]float64{5, 1, 3}, .5, 3},
		{[]float64{4, 1, 3, 2}, .5, 2.5},
		{[]float64{5, 4, 3, 2, 1}, .25, 2},
		{[]float64{5, 4, 3, 2, 1}, .75, 4},
		{[]float64{1, 2}, .25, 1.25},
		{[]float64{1, 2}, 1, 2},
	} {
		given := append([]float64(nil), test.values...)
		if got := Quantile(test.values, test.q); got != test.want {
			t.Errorf("Quantile(%v, %v) = %v, want %v", test.values, test.q, got, test.want)
		}
		if !reflect.DeepEqual(given, test.values) {
			t.Errorf("Quantile has sorted its values: %v", test.values)
		}
	}
}

func TestNumbers(t *testing.T) {
	for f, want := range map[float64]string{0: "0", .0012345: "0.001", .5: "0.500", 1: "1.00", 12.345: "12.3", 1234.5: "1234", -2: "-2.00"} {
		if got := number(f); got != want {
			t.Errorf("number(%v) = %s, want %s", f, got, want)
		}
	}
	for f, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(f); got != want {
			t.Errorf("thousands(%v) = %s, want %s", f, got, want)
		}
	}
}

// sample returns a table with a row of every verdict.
func sample() *Table {
	t := &Table{
		Machine: Machine{Date: "2026-01-02", Go: "go1.26", System: "Linux 6", Processor: "a processor", CPUs: 2, Memory: 24, Syncs: 4567.8},
		Tokens:  1_000_000, Rounds: 3, Span: "1s",
		Rows: []*Row{
			rounds(Goal{AtLeast: .6}, .7, .7, .7),
			rounds(Goal{AtLeast: .6}, .5, .5, .5),
			rounds(Goal{AtLeast: .6}, .5, .59, .7),
			rounds(Goal{}, .123456, 1, 2),
			rounds(Goal{AtMost: 1}),
		},
	}
	for i, at := range []int{1, 16, 64, 256} {
		t.Rows[i].At = at
		t.Rows[i].Name = "import/" + []string{"1", "16", "64", "256"}[i]
	}
	t.Rows[4].Part, t.Rows[4].Name, t.Rows[4].NotRun = "openbao", "openbao/create", "no binary"
	return t
}

// TestStore: a table comes back from its file, and the document shows each row and
// keeps all that is not generated.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	document, figures := filepath.Join(dir, "benchmarks.md"), filepath.Join(dir, "figures")
	if err := os.WriteFile(document, []byte("# Before\n\n"+begin+"old\n"+end+"\nAfter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	small := sample()
	small.Tokens = 10_000
	for _, table := range []*Table{sample(), small, small} { // the second time replaces the first
		if err := table.Store(figures, document); err != nil {
			t.Fatal(err)
		}
	}

	got, err := Read(filepath.Join(figures, "1M.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := sample()
	want.Rows[3].Rounds[0].Figure, want.Rows[3].Rounds[0].Ours = .1235, 123.5
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, want %+v", got, want)
	}

	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"# Before\n\n", "\nAfter\n", "4,568 fsyncs", "2026-01-02", "go1.26", "Linux 6",
		"1 rows reach their goal, 1 are short, 1 are short by less than their spread, 1 were not run; 1 have no goal.",
		"| import/1 | Import: 700/s, p99 1.50 ms | append-only bbolt loop: 1,000/s, p99 0.500 ms | 0.700 | 0.700 to 0.700 | at least 0.600 | reached |",
		"| import/16 | Import: 500/s, p99 1.50 ms | append-only bbolt loop: 1,000/s, p99 0.500 ms | 0.500 | 0.500 to 0.500 | at least 0.600 | **short** |",
		"| **short, by less than its spread** |", "| not run: no binary |",
		"(figures/1M.json)", "(figures/10k-goals.svg)",
	} {
		if !bytes.Contains(text, []byte(part)) {
			t.Errorf("the document lacks %q", part)
		}
	}
	if bytes.Contains(text, []byte("old")) || bytes.Index(text, []byte("## 10k tokens")) > bytes.Index(text, []byte("## 1M tokens")) ||
		bytes.Count(text, []byte("## 10k tokens")) != 1 {
		t.Errorf("the document is\n%s", text)
	}
}

func TestStoreNeedsMarks(t *testing.T) {
	document := filepath.Join(t.TempDir(), "benchmarks.md")
	if err := os.WriteFile(document, []byte("# Before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sample().Store(filepath.Join(t.TempDir(), "figures"), document); err == nil {
		t.Error("a document without marks was rewritten")
	}
}

// TestPlots: plots are SVG that can be parsed. They name the judged rows and the families.
func TestPlots(t *testing.T) {
	plots, err := sample().plots()
	if err != nil {
		t.Fatal(err)
	}
	goals, ratios := plots["1M-goals.svg"], plots["1M-ratios.svg"]
	for _, name := range []string{"import/1 (", "import/16 (", "import/64 ("} {
		if !strings.Contains(texts(t, goals), name) {
			t.Errorf("the goals lack %s", name)
		}
	}
	for _, name := range []string{"import/256 (", "openbao"} { // without a goal, without figures
		if strings.Contains(texts(t, goals), name) {
			t.Errorf("the goals have %s", name)
		}
	}
	if !strings.Contains(texts(t, ratios), "import") {
		t.Error("the ratios lack import")
	}

	again, err := sample().plots()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again["1M-goals.svg"], goals) {
		t.Error("a plot of the same table differs")
	}
	if _, err := (&Table{}).plots(); err != nil {
		t.Errorf("no rows: %v", err)
	}
}

// texts returns the text of an SVG.
func texts(t *testing.T, svg []byte) string {
	t.Helper()
	var b strings.Builder
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := token.(xml.CharData); ok {
			b.Write(text)
		}
	}
}

// TestShare: a bar at 1 is at the goal, also where less is better.
func TestShare(t *testing.T) {
	for _, test := range []struct {
		goal         Goal
		figure, want float64
	}{
		{Goal{AtLeast: .5}, .25, .5}, {Goal{AtLeast: .5}, .5, 1}, {Goal{AtLeast: .5}, 100, farthest},
		{Goal{AtMost: 2}, 4, .5}, {Goal{AtMost: 2}, 2, 1}, {Goal{AtMost: 2}, 0, farthest},
	} {
		if got := (&Row{Goal: test.goal}).share(test.figure); got != test.want {
			t.Errorf("%v of %v is %v, want %v", test.figure, test.goal, got, test.want)
		}
	}
}

func TestThisMachine(t *testing.T) {
	m, err := ThisMachine(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if m.Date == "" || m.CPUs < 1 || m.Syncs <= 0 || m.System == "" || !strings.HasPrefix(m.Go, "go") {
		t.Errorf("%+v", m)
	}
}
