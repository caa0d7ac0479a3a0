package main

import (
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// plotted writes a run of two algorithms that cross between 4K and 64K.
func plotted(t *testing.T, format string) string {
	t.Helper()
	r := goldenReport()
	r.Rows = nil
	for i, size := range []int64{4096, 65536, 1 << 20} {
		for j, name := range []string{"singleshot", "pipeline", rowRead} {
			one := row{Size: size, Algorithm: name, Wire: "f32", Ordering: "native"}
			one.time([]float64{[][]float64{{10, 100, 2000}, {20, 50, 300}, {1, 10, 100}}[j][i] / 1e6}, 2, false)
			r.Rows = append(r.Rows, one)
		}
	}
	path := filepath.Join(t.TempDir(), "run."+format)
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	p := newPrinter(format, &output{f, new(strings.Builder)}, false)
	p.begin(r)
	for i := range r.Rows {
		p.row(&r.Rows[i])
	}
	p.end(r)
	return path
}

func TestPlot(t *testing.T) {
	one, two := plotted(t, "json"), plotted(t, "jsonl")
	image := filepath.Join(t.TempDir(), "plot.png")
	if status, _, errs := vkcomm("plot", one, "-o", image); status != 0 {
		t.Fatal(errs)
	}
	f, err := os.Open(image)
	must(t, err)
	defer f.Close()
	decoded, err := png.Decode(f)
	must(t, err)
	if size := decoded.Bounds().Size(); size.X < 1000 || size.Y < 400 {
		t.Errorf("%v", size)
	}
	drawing := filepath.Join(t.TempDir(), "plot.svg")
	if status, _, errs := vkcomm("plot", one, two, "-o", drawing, "--title", "a title"); status != 0 {
		t.Fatal(errs)
	}
	text, err := os.ReadFile(drawing)
	must(t, err)
	for _, part := range []string{"a title", "run singleshot (native)", "run link-read", "bus bandwidth (GB/s)", "time (us)", "64K", "</svg>"} {
		if !strings.Contains(string(text), part) {
			t.Errorf("the drawing does not have %q", part)
		}
	}
}

func TestJSONAndLinesAreAlike(t *testing.T) {
	one, err := readReport(plotted(t, "json"))
	must(t, err)
	two, err := readReport(plotted(t, "jsonl"))
	must(t, err)
	if diff := cmp.Diff(one, two); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]float64{16384}, crossovers(seriesOf(one, ""))); diff != "" {
		t.Errorf("crossovers: %s", diff)
	}
}

func TestPlotRefuses(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "other": `{"a":1}`, "text": "# vkcomm", "rows": `{"config":{"worldSize":2},"rows":[]}`} {
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, []byte(text), 0o644))
		if status, _, errs := vkcomm("plot", path, "-o", path+".svg"); status != exitFailure || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: status %d, %q", name, status, errs)
		}
	}
}
