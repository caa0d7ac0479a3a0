package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"ggmlvkcomm/semaphores"
	"ggmlvkcomm/vkimpl"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]size{"4": 4, "4K": 4096, "64m": 64 << 20, "1G": 1 << 30} {
		var s size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%s: %d, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "K", "-4K", "4KB", "1.5M", "99999G"} {
		if err := new(size).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	for n, want := range map[int64]string{4: "4", 4096: "4K", 5000: "5000", 64 << 20: "64M", 3 << 19: "1536K", 1 << 20: "1M", 1 << 30: "1G"} {
		if got := sizeText(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	c := benchCmd{Min: 4096, Max: 70000, Factor: 4}
	if diff := cmp.Diff([]int64{4096, 16384, 65536}, c.sizes()); diff != "" {
		t.Error(diff)
	}
	c = benchCmd{Min: 1000, Max: 3000, Step: 1001}
	if diff := cmp.Diff([]int64{1000, 2000}, c.sizes()); diff != "" {
		t.Error(diff)
	}
}

// Formulas of nccl-tests' doc/PERFORMANCE.md.
func TestBandwidth(t *testing.T) {
	for world, want := range map[int]float64{2: 1, 3: 4.0 / 3, 4: 1.5, 8: 1.75} {
		if got := busFactor(world); got != want {
			t.Errorf("%d ranks: %g, want %g", world, got, want)
		}
	}
	r := row{Size: 4e6, Algorithm: "ring"}
	r.time([]float64{3e-3, 1e-3, 2e-3, 2e-3}, 4, true)
	want := row{Size: 4e6, Algorithm: "ring", MinUs: 1000, P50Us: 2000, P99Us: 3000, Algbw: 2, Busbw: 3, AvgUs: 2000, CV: 0.35355339059327373,
		AllUs: []float64{3000, 1000, 2000, 2000}}
	if diff := cmp.Diff(want, r, cmpopts.EquateApprox(1e-12, 0)); diff != "" {
		t.Error(diff)
	}
	link := row{Size: 4e6, Algorithm: rowRead}
	link.time([]float64{2e-3}, 4, false)
	if link.Busbw != 2 || link.AllUs != nil {
		t.Errorf("%+v", link)
	}
}

func TestPercentile(t *testing.T) {
	var v []float64
	for i := range 100 {
		v = append(v, float64(100-i))
	}
	for percent, want := range map[int]float64{0: 1, 1: 1, 50: 50, 99: 99, 100: 100} {
		if got := percentile(v, percent); got != want {
			t.Errorf("p%d is %g, want %g", percent, got, want)
		}
	}
	if percentile(nil, 50) != 0 || percentile([]float64{7}, 99) != 7 {
		t.Error("edges")
	}
}

// The emulated butterfly's copies and additions give every rank the whole sum.
func TestButterflyPairs(t *testing.T) {
	for world := 2; world <= 16; world++ {
		values := make([]int, world)
		want := 0
		for r := range values {
			values[r] = 1 << r
			want += 1 << r
		}
		phases, surplus := butterflyPairs(world)
		for i, list := range phases {
			before := append([]int(nil), values...)
			for _, p := range list {
				if surplus && i == len(phases)-1 {
					values[p.to] = before[p.from]
				} else {
					values[p.to] += before[p.from]
				}
			}
		}
		for r, v := range values {
			if v != want {
				t.Errorf("%d ranks: rank %d has %b, want %b", world, r, v, want)
			}
		}
	}
}

// Operands and every sum of 16 of them are exact in BF16: integers up to 256.
func TestOperandsAreExact(t *testing.T) {
	for rank := range 16 {
		for i := range 100 {
			if v := operand(rank, i, i%3); v != float32(int(v)) || v < -15 || v > 15 {
				t.Fatalf("operand(%d, %d) is %g", rank, i, v)
			}
		}
	}
}

// goldenReport has rows of every kind.
func goldenReport() *report {
	zero, bad := int64(0), int64(12)
	r := &report{Version: "1.2.3", Commit: "abc", Date: "2026-01-02T03:04:05Z", Args: []string{"bench", "-b", "4K"}, Env: map[string]string{},
		Ranks:  []rankInfo{{0, 0, "GPU A", "drv", "00", "0000:01:00.0"}, {1, 3, "GPU B", "drv", "01", ""}},
		Config: configInfo{WorldSize: 2, Ordering: "native", StagingMB: 16, Iters: 20, Warmup: 3, Aggregate: 4, Check: 1}, Notes: []string{"a note"},
		Rows: []row{
			{4096, 1024, "float", "singleshot", "f32", "native", 9.5, 10, 12.25, 0.4096, 0.4096, &zero, 10.125, 0.05, nil, nil},
			{64 << 20, 16 << 20, "float", "pipeline", "bf16", "native", 1234.5, 1300, 123456.789, 51.622, 51.622, &bad, 1310, 0.1234, nil, nil},
			{4096, 1024, "float", rowWrite, "f32", "none", 5, 5, 5, 0.8192, 0.8192, nil, 5, 0, nil, nil},
		}}
	r.finish(nil)
	return r
}

func TestOutputIsGolden(t *testing.T) {
	for _, format := range []string{"text", "md", "csv", "json", "jsonl"} {
		for _, stats := range []bool{false, true} {
			var out, errs strings.Builder
			r := goldenReport()
			p := newPrinter(format, &output{&out, &errs}, stats)
			p.begin(r)
			for i := range r.Rows {
				p.progress(&r.Rows[i])
				p.row(&r.Rows[i])
			}
			p.end(r)
			name := format
			if stats {
				name += "-I"
			}
			golden(t, name, "stdout:\n"+out.String()+"stderr:\n"+errs.String())
		}
	}
}

// golden compares with testdata; VKCOMM_UPDATE_GOLDEN=1 writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if os.Getenv("VKCOMM_UPDATE_GOLDEN") != "" {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: %s", name, diff)
	}
}

// Lines of text that are no data begin with '#', the others have the columns.
func TestTextGrammar(t *testing.T) {
	var out strings.Builder
	r := goldenReport()
	p := newPrinter("text", &output{&out, &out}, false)
	p.begin(r)
	for i := range r.Rows {
		p.row(&r.Rows[i])
	}
	p.end(r)
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		if !strings.HasPrefix(line, "#") && len(strings.Fields(line)) != len(columns) {
			t.Errorf("%q has %d columns, want %d", line, len(strings.Fields(line)), len(columns))
		}
	}
}

func TestCreateNewIsExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	for i := range 3 {
		f, err := createNew(path)
		must(t, err)
		want := path
		if i > 0 {
			want = fmt.Sprintf("%s.%d", path, i)
		}
		if f.Name() != want {
			t.Errorf("%s, want %s", f.Name(), want)
		}
		f.Close()
	}
	if _, err := createNew("/nonexistent/r.json"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestOwnEnvironmentLeaksNothing(t *testing.T) {
	got := ownEnvironment([]string{"GGML_VK_COMM_RING=1", "SECRET=x", "GGML_VK_VISIBLE_DEVICES=0,0", "HF_TOKEN=y"})
	if diff := cmp.Diff(map[string]string{"GGML_VK_COMM_RING": "1", "GGML_VK_VISIBLE_DEVICES": "0,0"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestVerdict(t *testing.T) {
	ok := goldenReport()
	ok.OutOfBounds = 0
	for _, c := range []struct {
		r    *report
		min  float64
		says string
	}{
		{ok, 0, ""},
		{ok, 1, ""},
		{ok, 1000, "at least 1000"},
		{goldenReport(), 0, "12 wrong elements"},
		{&report{Notes: []string{"why"}}, 0, "nothing was measured"},
	} {
		b := bench{benchCmd: &benchCmd{MinBusbw: c.min}, report: *c.r}
		if err := b.verdict(); err == nil != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
}

func TestBenchOnDevices(t *testing.T) {
	needVulkan(t)
	file := filepath.Join(t.TempDir(), "r.json")
	status, out, errs := vkcomm(strings.Fields("bench --ranks 3 -b 4100 -e 70K -f 16 -n 2 -w 1 -m 2 -c 3 --wire f32,f16,bf16 -o json -J " + file)...)
	if status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	var r report
	must(t, json.Unmarshal([]byte(out), &r))
	same, err := readReport(file)
	must(t, err)
	if diff := cmp.Diff(&r, same); diff != "" {
		t.Errorf("-o json (-) and -J (+) differ: %s", diff)
	}
	seen := map[string]int{}
	for _, row := range r.Rows {
		seen[row.Algorithm]++
		if !row.isLink() && (row.Wrong == nil || *row.Wrong != 0) {
			t.Errorf("%+v", row)
		}
		if row.MinUs <= 0 || row.MinUs > row.P50Us || row.P50Us > row.P99Us || row.Busbw <= 0 {
			t.Errorf("%+v", row)
		}
	}
	for _, name := range []string{"singleshot", "pipeline", "twoshot", "ring"} {
		if seen[name] != 6 { // 2 sizes, 3 wires
			t.Errorf("%d rows of %s, want 6", seen[name], name)
		}
	}
	for _, name := range []string{rowButterfly, rowWrite, rowRead} {
		if seen[name] != 2 {
			t.Errorf("%d rows of %s, want 2", seen[name], name)
		}
	}
	if status, _, errs := vkcomm(strings.Fields("bench --ranks 2 -b 4K -e 4K -n 1 -w 0 --no-references --algo ring --min-busbw 1e6")...); status != exitFailure {
		t.Errorf("below --min-busbw: status %d, %s", status, errs)
	}
}

// idle does nothing, and so leaves every element wrong whose sum is another.
type idle struct{}

func (idle) submit(*rig) error { return nil }
func (idle) close()            {}

func TestBenchPeerToPeer(t *testing.T) {
	needVulkan(t)
	status, out, errs := vkcomm(strings.Fields("bench --ranks 2 -b 4K -e 64K -f 16 -n 2 -w 1 -c 2 --p2p -o json --no-references")...)
	var r report
	must(t, json.Unmarshal([]byte(out), &r))
	if status != 0 || r.OutOfBounds != 0 || len(r.Config.Staging) != 2 {
		t.Errorf("status %d: %s; %+v", status, errs, r.Config)
	}
}

func TestCheckFindsWrongElements(t *testing.T) {
	needVulkan(t)
	s, err := vkimpl.OpenStandalone([]int{0, 0}, vkimpl.StandaloneOptions{})
	must(t, err)
	defer s.Close()
	g, err := openRig(s, s.Adopted, 1<<20, 4096, semaphores.Auto)
	must(t, err)
	defer g.close()
	const elements = 1024
	var want int64
	for i := range elements {
		for r := range 2 {
			if operand(0, i, 0)+operand(1, i, 0) != operand(r, i, 0) {
				want++
			}
		}
	}
	if got, err := g.check(idle{}, elements, 0); err != nil || got != want || want < elements {
		t.Errorf("%d wrong elements, %v; want %d", got, err, want)
	}
}
