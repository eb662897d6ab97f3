package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// The picture of the house stands in DESIGN.md between these lines.
const (
	pictureFile  = "DESIGN.md"
	pictureBegin = "<!-- picture: make house PICTURE=1 -->\n```text\n"
	pictureEnd   = "```\n<!-- end of picture -->\n"
)

// outside are the folders whose packages are not drawn, because programs that use the
// product do not link them.
var outside = []string{"examples", "test", "tools", "internal/bench", "internal/bubble", "internal/doctest", "internal/familytest",
	"internal/fault", "internal/floorplan", "internal/ledgertest", "internal/printtest", "internal/realtest", "internal/transcript"}

func drawn(dir string) bool {
	return !slices.ContainsFunc(outside, func(folder string) bool { return dir == folder || strings.HasPrefix(dir, folder+"/") })
}

// picture draws the packages of the product, each above the packages it rests on. Beside
// each stand its imports, except those that another import also imports.
func (h house) picture() string {
	below := map[string][]string{} // imports of each package
	for _, r := range h.at(everywhere) {
		if drawn(r.dir) {
			below[r.dir] = h.importsOf(r)
		}
	}
	floors, reached := map[string]int{}, map[string]map[string]bool{}
	var climb func(dir string)
	climb = func(dir string) {
		if reached[dir] != nil {
			return
		}
		reached[dir] = map[string]bool{}
		for _, b := range below[dir] {
			climb(b)
			floors[dir] = max(floors[dir], floors[b]+1)
			reached[dir][b] = true
			maps.Copy(reached[dir], reached[b])
		}
	}
	rooms := slices.Sorted(maps.Keys(below))
	for _, dir := range rooms {
		climb(dir)
	}

	slices.SortStableFunc(rooms, func(a, b string) int { return cmp.Compare(floors[b], floors[a]) })
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, dir := range rooms {
		var next []string
		for _, b := range below[dir] {
			if !slices.ContainsFunc(below[dir], func(other string) bool { return reached[other][b] }) {
				next = append(next, roomName(b))
			}
		}
		line := fmt.Sprintf("%d\t%s", floors[dir], roomName(dir))
		if len(next) > 0 {
			line += "\trests on " + strings.Join(next, ", ")
		}
		fmt.Fprintln(w, line)
	}
	w.Flush()
	return out.String()
}

func roomName(dir string) string {
	if dir == root {
		return "cardvault"
	}
	return dir
}

// importsOf returns the folders of the packages of the repository that a room imports.
func (h house) importsOf(r *room) (dirs []string) {
	byPath := map[string]string{}
	for _, other := range h.at(everywhere) {
		byPath[other.types.Path()] = other.dir
	}
	imported := func(p *types.Package) string { return byPath[p.Path()] }
	for _, p := range r.types.Imports() {
		if dir := imported(p); dir != "" && drawn(dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// checkPicture fails unless DESIGN.md has the picture as the code has it.
func (h house) checkPicture(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, pictureFile))
	if err != nil {
		return err
	}
	_, rest, begun := strings.Cut(string(text), pictureBegin)
	have, _, ended := strings.Cut(rest, pictureEnd)
	switch {
	case !begun || !ended:
		return errors.New(pictureFile + " has no picture of the house")
	case have != h.picture():
		return errors.New(pictureFile + " has an outdated picture of the house: make house PICTURE=1 redraws it")
	}
	return nil
}

// drawPicture puts the picture into DESIGN.md.
func (h house) drawPicture(dir string) error {
	path := filepath.Join(dir, pictureFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begun := strings.Cut(string(text), pictureBegin)
	_, after, ended := strings.Cut(rest, pictureEnd)
	if !begun || !ended {
		return errors.New(pictureFile + " has no place for the picture of the house")
	}
	return os.WriteFile(path, []byte(before+pictureBegin+h.picture()+pictureEnd+after), 0o644)
}
