package table

import (
	"bytes"
	"fmt"
	"image/color"
	"path"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colours that differ for people who do not see red and green.
var (
	reachedColour = color.RGBA{0x3b, 0x7d, 0xb8, 0xff}
	shortColour   = color.RGBA{0xe0, 0x7b, 0x27, 0xff}
	goalColour    = color.RGBA{0x33, 0x33, 0x33, 0xff}
)

// farthest cuts a bar that has reached its goal several times over.
const farthest = 3.0

// plots returns the plots of t by the names of their files.
func (t *Table) plots() (map[string][]byte, error) {
	goals, err := t.plotGoals()
	if err != nil {
		return nil, err
	}
	ratios, err := t.plotRatios()
	if err != nil {
		return nil, err
	}
	return map[string][]byte{t.Size() + "-goals.svg": goals, t.Size() + "-ratios.svg": ratios}, nil
}

// plotGoals draws a bar for each row with a goal: how much of the goal the median reaches,
// with its quartiles.
func (t *Table) plotGoals() ([]byte, error) {
	var judged []*Row
	for _, r := range t.Rows {
		if v := r.Verdict(); v != Reported && v != Unmeasured {
			judged = append(judged, r)
		}
	}
	slices.Reverse(judged) // the first is drawn on top

	p := newPlot("Share of the goal that is reached, with quartiles")
	p.X.Min, p.X.Max, p.Y.Padding = 0, farthest+.2, vg.Centimeter
	names := make([]string, len(judged))
	for i, r := range judged {
		names[i] = fmt.Sprintf("%s (%s)", r.Name, r.Goal)
		bar, err := r.bar(float64(i))
		if err != nil {
			return nil, err
		}
		p.Add(bar...)
	}
	if len(names) > 0 {
		p.NominalY(names...)
	}

	goal, err := plotter.NewLine(plotter.XYs{{X: 1, Y: -.5}, {X: 1, Y: float64(len(judged)) - .5}})
	if err != nil {
		return nil, err
	}
	goal.Color = goalColour
	p.Add(goal)
	return draws(p, 18*vg.Centimeter, vg.Length(len(judged)+4)*.55*vg.Centimeter, 0)
}

// share returns how much of its goal a figure reaches: 1 is the goal.
func (r *Row) share(figure float64) float64 {
	share := figure / r.Goal.AtLeast
	if r.Goal.AtMost > 0 {
		share = r.Goal.AtMost / max(figure, 1e-9)
	}
	return min(share, farthest)
}

// bar returns the bar of a row and a line between its quartiles.
func (r *Row) bar(at float64) ([]plot.Plotter, error) {
	bar, err := plotter.NewBarChart(plotter.Values{r.share(r.Median())}, .32*vg.Centimeter)
	if err != nil {
		return nil, err
	}
	bar.Horizontal, bar.XMin = true, at
	bar.LineStyle.Width = 0
	bar.Color = reachedColour
	if r.Verdict() != Reached {
		bar.Color = shortColour
	}

	low, high := r.Quartiles()
	spread, err := plotter.NewLine(plotter.XYs{{X: r.share(low), Y: at}, {X: r.share(high), Y: at}})
	if err != nil {
		return nil, err
	}
	spread.Color, spread.Width = goalColour, 1.5
	return []plot.Plotter{bar, spread}, nil
}

// plotRatios draws a line for each family of rows that differ in the number of their
// connections alone.
func (t *Table) plotRatios() ([]byte, error) {
	const legend = 5 * vg.Centimeter // beside the axes
	p := newPlot("Ratio by goroutines or connections")
	p.X.Scale, p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.X.Tick.Marker = plot.ConstantTicks([]plot.Tick{{Value: 1, Label: "1"}, {Value: 16, Label: "16"}, {Value: 64, Label: "64"}, {Value: 256, Label: "256"}})
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 1, 256, .1, 1
	p.Legend.Top, p.Legend.XOffs, p.Legend.Padding = true, legend, .15*vg.Centimeter

	for i, f := range t.families() {
		line, points, err := plotter.NewLinePoints(f.points)
		if err != nil {
			return nil, err
		}
		line.Color, points.Color, points.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
		p.Add(line, points)
		p.Legend.Add(f.name, line, points)
	}
	return draws(p, 18*vg.Centimeter, 12*vg.Centimeter, legend)
}

// A family is a line of the plot.
type family struct {
	name   string
	points plotter.XYs
}

// families returns the rows whose names differ in their last element, a number of
// connections, for each family of three and more. Ratios of 0 have no place on a
// logarithmic axis.
func (t *Table) families() (all []*family) {
	found := map[string]*family{}
	for _, r := range t.Rows {
		if r.Unit != "" || r.Median() <= 0 || path.Base(r.Name) != strconv.Itoa(r.At) {
			continue
		}
		name := strings.TrimSuffix(path.Dir(r.Name), "/")
		if found[name] == nil {
			found[name] = &family{name: name}
			all = append(all, found[name])
		}
		found[name].points = append(found[name].points, plotter.XY{X: float64(r.At), Y: r.Median()})
	}
	return slices.DeleteFunc(all, func(f *family) bool { return len(f.points) < 3 })
}

func newPlot(title string) *plot.Plot {
	sans := font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text = title
	for _, style := range []*font.Font{&p.Title.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font} {
		size := style.Size
		*style = sans
		style.Size = size
	}
	return p
}

// draws returns a plot as SVG, with room at its right.
func draws(p *plot.Plot, width, height, room vg.Length) ([]byte, error) {
	canvas := vgsvg.New(width, height)
	p.Draw(draw.Crop(draw.NewCanvas(canvas, width, height), .2*vg.Centimeter, -room-.5*vg.Centimeter, 0, 0))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, err
	}
	// Fonts of the same widths that more systems have.
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:"), []byte("font-family:Arial,Helvetica,")), nil
}
