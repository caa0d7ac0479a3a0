package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

type plotCmd struct {
	Files  []string `arg:"" name:"file" help:"Results of bench: JSON or JSON lines."`
	Output string   `short:"o" required:"" placeholder:"FILE" help:"The plot: .svg or .png."`
	Title  string   `placeholder:"TEXT" help:"Title (default: the devices)."`
}

// Help is the long text of vkcomm plot --help.
func (*plotCmd) Help() string {
	return `Left the bus bandwidth over the size, right the time over the size, on logarithmic axes; a line for each algorithm,
wire and ordering. Grey vertical lines are where another algorithm becomes the fastest.

Example:
  vkcomm bench -b 4K -e 64M -o json > result.json
  vkcomm plot result.json -o result.svg`
}

// Validate checks what kong does not.
func (c *plotCmd) Validate() error {
	if ext := filepath.Ext(c.Output); c.Output != "" && ext != ".svg" && ext != ".png" {
		return fmt.Errorf("-o %s: accepted are .svg and .png", c.Output)
	}
	return nil
}

// series is one line of the plots.
type series struct {
	name      string
	algorithm string
	variant   string // what else tells it apart: file and wire
	ours      bool
	rows      []row
}

// Run reads, draws and writes.
func (c *plotCmd) Run() error {
	var all []series
	var title string
	for _, path := range c.Files {
		r, err := readReport(path)
		if err != nil {
			return fmt.Errorf("plot: %s: %w", path, err)
		}
		prefix := ""
		if len(c.Files) > 1 {
			prefix = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)) + " "
		}
		all = append(all, seriesOf(r, prefix)...)
		if title == "" {
			title = titleOf(r)
		}
	}
	if len(all) == 0 {
		return errors.New("plot: there are no rows")
	}
	if c.Title != "" {
		title = c.Title
	}
	return writePlot(c.Output, title, all)
}

// readReport accepts what -o json and -o jsonl write.
func readReport(path string) (*report, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r report
	decoder := json.NewDecoder(bytes.NewReader(text))
	for n := 0; ; n++ {
		var line struct {
			Kind string `json:"kind"`
		}
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) && n > 0 {
			return &r, nil
		}
		if err == nil {
			err = json.Unmarshal(raw, &line)
		}
		if err != nil {
			return nil, fmt.Errorf("not a result of bench: %w", err)
		}
		if line.Kind == "row" {
			var one row
			if err := json.Unmarshal(raw, &one); err != nil {
				return nil, err
			}
			r.Rows = append(r.Rows, one)
			continue
		}
		rows := r.Rows
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, err
		}
		if r.Config.WorldSize == 0 {
			return nil, errors.New("not a result of bench: it has no config.worldSize")
		}
		if line.Kind != "" {
			r.Rows = rows
		}
	}
}

func titleOf(r *report) string {
	names := map[string]int{}
	var order []string
	for _, d := range r.Ranks {
		if names[d.Name] == 0 {
			order = append(order, d.Name)
		}
		names[d.Name]++
	}
	var parts []string
	for _, name := range order {
		parts = append(parts, fmt.Sprintf("%d x %s", names[name], name))
	}
	return "AllReduce, " + strings.Join(parts, " + ")
}

// seriesOf groups rows by what they are a measurement of. A name leaves out what
// all of them share.
func seriesOf(r *report, prefix string) (list []series) {
	wires := map[string]bool{}
	for _, row := range r.ours() {
		wires[row.Wire] = true
	}
	index := map[string]int{}
	for _, row := range r.Rows {
		name := prefix + row.Algorithm
		if row.isOurs() && len(wires) > 1 {
			name += " " + row.Wire
		}
		if row.isOurs() {
			name += " (" + row.Ordering + ")"
		}
		i, ok := index[name]
		if !ok {
			i = len(list)
			index[name] = i
			list = append(list, series{name: name, algorithm: row.Algorithm, variant: prefix + row.Wire, ours: row.isOurs()})
		}
		list[i].rows = append(list[i].rows, row)
	}
	for i := range list {
		slices.SortFunc(list[i].rows, func(a, b row) int { return int(a.Size - b.Size) })
	}
	return list
}

// colors of the algorithms are of the palette of Okabe and Ito, told apart by
// the colour-blind as well; references are grey.
var colors = map[string]color.Color{
	"singleshot": color.RGBA{0, 114, 178, 255}, "pipeline": color.RGBA{213, 94, 0, 255}, "twoshot": color.RGBA{0, 158, 115, 255},
	"ring": color.RGBA{204, 121, 167, 255}, "relay": color.RGBA{230, 159, 0, 255},
	rowButterfly: color.Black, rowWrite: color.Gray{110}, rowRead: color.Gray{160},
}

var shapes = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.PyramidGlyph{}, draw.CrossGlyph{}, draw.RingGlyph{}}

const (
	plotWidth, plotHeight = 30 * vg.Centimeter, 13 * vg.Centimeter
	plotDPI               = 110
)

func writePlot(path, title string, all []series) error {
	bandwidth, err := panel(title, "bus bandwidth (GB/s)", all, func(r *row) float64 { return r.Busbw })
	if err != nil {
		return err
	}
	duration, err := panel("", "time (us)", all, func(r *row) float64 { return r.P50Us })
	if err != nil {
		return err
	}
	bandwidth.Legend = plot.NewLegend() // that of the right one serves both, where there is room: times rise
	duration.Title.Text = " "
	duration.Legend.Top, duration.Legend.Left, duration.Legend.Padding = true, true, vg.Points(2)
	duration.Legend.XOffs, duration.Legend.YOffs = vg.Points(8), -vg.Points(20)

	var canvas vg.CanvasSizer
	var writer io.WriterTo
	if filepath.Ext(path) == ".png" {
		c := vgimg.NewWith(vgimg.UseWH(plotWidth, plotHeight), vgimg.UseDPI(plotDPI))
		canvas, writer = c, vgimg.PngCanvas{Canvas: c}
	} else {
		c := vgsvg.New(plotWidth, plotHeight)
		canvas, writer = c, c
	}
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: vg.Centimeter, PadTop: vg.Millimeter * 3, PadBottom: vg.Millimeter * 3, PadLeft: vg.Millimeter * 3, PadRight: vg.Millimeter * 5}
	whole := draw.New(canvas)
	whole.SetColor(color.White)
	whole.Fill(whole.Rectangle.Path())
	for col, canvas := range plot.Align([][]*plot.Plot{{bandwidth, duration}}, tiles, whole)[0] {
		[]*plot.Plot{bandwidth, duration}[col].Draw(canvas)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := writer.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// panel plots value over size. A value that is not positive has no place on a
// logarithmic axis.
func panel(title, label string, all []series, value func(r *row) float64) (*plot.Plot, error) {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text, p.Title.TextStyle.Font.Size = title, font.Points(11)
	p.X.Label.Text, p.Y.Label.Text = "size (bytes)", label
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(sizeTicks), plot.TickerFunc(valueTicks)
	p.Legend.TextStyle.Font.Size = font.Points(9)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{225}, color.Gray{225}
	p.Add(grid)
	low, high := math.Inf(1), 0.0
	var variants []string
	for _, s := range all {
		if !slices.Contains(variants, s.variant) {
			variants = append(variants, s.variant)
		}
		var points plotter.XYs
		for j := range s.rows {
			if v := value(&s.rows[j]); v > 0 {
				points = append(points, plotter.XY{X: float64(s.rows[j].Size), Y: v})
				low, high = min(low, v), max(high, v)
			}
		}
		if len(points) == 0 {
			continue
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, marks.Color = color.Gray{128}, color.Gray{128}
		if c := colors[s.algorithm]; c != nil {
			line.Color, marks.Color = c, c
		}
		line.Width = vg.Points(1.5)
		marks.Shape, marks.Radius = shapes[slices.Index(variants, s.variant)%len(shapes)], vg.Points(2.5)
		if !s.ours { // references
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
			line.Width = vg.Points(1)
		}
		p.Add(line, marks)
		p.Legend.Add(s.name, line, marks)
	}
	if high == 0 {
		return nil, errors.New("plot: no value is above 0")
	}
	for _, x := range crossovers(all) {
		line, err := plotter.NewLine(plotter.XYs{{X: x, Y: low}, {X: x, Y: high}})
		if err != nil {
			return nil, err
		}
		line.Color, line.Dashes = color.Gray{130}, []vg.Length{vg.Points(1), vg.Points(2)}
		p.Add(line)
	}
	p.Y.Min, p.Y.Max = low/1.2, high*1.2
	p.X.Min, p.X.Max = p.X.Min/1.15, p.X.Max*1.15
	return p, nil
}

// crossovers are the sizes, between two measured ones, at which another of our
// series becomes the fastest.
func crossovers(all []series) (sizes []float64) {
	best := map[int64]string{}
	least := map[int64]float64{}
	for _, s := range all {
		for _, r := range s.rows {
			if us, ok := least[r.Size]; s.ours && (!ok || r.P50Us < us) {
				least[r.Size], best[r.Size] = r.P50Us, s.name
			}
		}
	}
	var order []int64
	for n := range best {
		order = append(order, n)
	}
	slices.Sort(order)
	for i := 1; i < len(order); i++ {
		if best[order[i]] != best[order[i-1]] {
			sizes = append(sizes, math.Sqrt(float64(order[i])*float64(order[i-1])))
		}
	}
	return sizes
}

// sizeTicks are powers of two, every fourth power labelled at most.
func sizeTicks(low, high float64) (ticks []plot.Tick) {
	every := 1 + int(math.Log2(high/low))/8
	for power := range 40 {
		if n := int64(1) << power; float64(n) >= low && float64(n) <= high {
			label := ""
			if power%every == 0 {
				label = sizeText(n)
			}
			ticks = append(ticks, plot.Tick{Value: float64(n), Label: label})
		}
	}
	return ticks
}

// valueTicks are 1, 2 and 5 times powers of ten, all labelled if few, and minor
// ones between.
func valueTicks(low, high float64) (ticks []plot.Tick) {
	few := math.Log10(high/low) < 3
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, e)
			if v < low || v > high {
				continue
			}
			label := ""
			if m == 1 || few && (m == 2 || m == 5) {
				label = strconv.FormatFloat(v, 'f', -1, 64)
				if v < 1 {
					label = strconv.FormatFloat(v, 'g', 2, 64)
				}
			}
			ticks = append(ticks, plot.Tick{Value: v, Label: label})
		}
	}
	return ticks
}
