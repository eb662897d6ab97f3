// Command house prints the shape of the repository in figures, and fails if one of them is
// worse than its limit, or if DESIGN.md has another picture of the packages.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"text/tabwriter"
)

func main() {
	log.SetFlags(0)
	dir := flag.String("C", "..", "the repository")
	quiet := flag.Bool("q", false, "print only figures whose limit is to change, or is passed")
	verbose := flag.Bool("v", false, "name everything that the figures count")
	draw := flag.Bool("picture", false, "put the picture of the packages into DESIGN.md")
	flag.Parse()

	h, err := open(*dir)
	if err == nil && *draw {
		err = h.drawPicture(*dir)
	}
	if err != nil {
		log.Fatal(err)
	}
	bounds := append(limits, h.proseLimits()...)
	if !*quiet {
		h.print(os.Stdout, bounds)
	}
	holds := h.check(os.Stdout, bounds, *verbose)
	if err := h.checkPicture(*dir); err != nil {
		fmt.Println("FAIL:", err)
		holds = false
	}
	if !holds {
		os.Exit(1)
	}
}

// columns are the figures of each package.
var columns = []measure{lines, counted, walls, p99, longest, over75, over100, circle, hidden, calques, sentences}

// print prints the figures that have limits, and then the figures of each package.
func (h house) print(out io.Writer, bounds []limit) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\t\tfigure\tlimit\tgoal")
	for _, l := range bounds {
		figure, _ := l.of.take(h, l.where)
		fmt.Fprintf(w, "%s\t%s\t%v\t%v\t%v\n", l.of.name, label(l.where), figure, l.atMost, l.goal)
	}
	fmt.Fprintln(w)
	w.Flush()

	fmt.Fprint(w, "package")
	for _, m := range columns {
		fmt.Fprintf(w, "\t%s", m.short)
	}
	for _, r := range append(h.at(everywhere), &room{dir: everywhere}) {
		fmt.Fprintf(w, "\n%s", label(r.dir))
		for _, m := range columns {
			figure, _ := m.take(h, r.dir)
			fmt.Fprintf(w, "\t%v", figure)
		}
	}
	fmt.Fprintln(w)
	w.Flush()
}

// check reports whether all limits hold. It prints the limits that do not, with the names
// of the offenders, and the limits that could be much lower.
func (h house) check(out io.Writer, bounds []limit, verbose bool) bool {
	holds := true
	for _, l := range bounds {
		name := l.of.name + ", " + label(l.where)
		if len(h.at(l.where)) == 0 {
			holds = false
			fmt.Fprintf(out, "FAIL: %s: there is no such package\n", name)
			continue
		}

		figure, offenders := l.of.take(h, l.where)
		passed := figure > l.atMost
		switch {
		case passed:
			holds = false
			fmt.Fprintf(out, "FAIL: %s: %v, the limit is %v\n", name, figure, l.atMost)
		case figure < loose*l.atMost && l.atMost > l.goal:
			fmt.Fprintf(out, "lower the limit: %s: %v, the limit is %v\n", name, figure, l.atMost)
		case verbose:
			fmt.Fprintf(out, "%s: %v\n", name, figure)
		}

		for _, text := range offenders {
			if passed || verbose {
				fmt.Fprintf(out, "\t%s\n", text)
			}
		}
	}
	return holds
}

// label names a package for print.
func label(where string) string {
	switch where {
	case everywhere:
		return "all"
	case root:
		return "root"
	}
	return where
}
