package plugin

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ggmlvkcomm/allreduce"
)

func TestParseAlgo(t *testing.T) {
	rules, ok := parseAlgo("singleshot:0-256K,pipeline:256K-3M,ring:3M-max")
	want := []rule{{"singleshot", 0, 256 << 10}, {"pipeline", 256 << 10, 3 << 20}, {"ring", 3 << 20, maxBytes}}
	if !ok || !cmp.Equal(rules, want, cmp.AllowUnexported(rule{})) {
		t.Error(rules, ok)
	}
	for _, bad := range []string{
		"", "singleshot", "singleshot:0", "singleshot:0-1M", "singleshot:1-max", "singleshot:0-1M,ring:2M-max",
		"singleshot:0-1M,ring:1M-1M,ring:1M-max", "tree:0-max", "singleshot:0-max,", "singleshot:0-1G,ring:1G-max",
		"singleshot:-1-max", "singleshot:0-99999999999999M,ring:99999999999999M-max",
	} {
		if rules, ok := parseAlgo(bad); ok {
			t.Errorf("%q accepted as %v", bad, rules)
		}
	}
}

// The log's form of a selection is what the variable accepts.
func TestSelectionPrintsWhatAlgoReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cuts := rapid.SliceOfNDistinct(rapid.Int64Range(1, 1<<32), 0, 4, rapid.ID).Draw(t, "cuts")
		names := rapid.SliceOfN(rapid.SampledFrom(algorithmNames()), len(cuts)+1, len(cuts)+1).Draw(t, "names")
		rules := rulesOf(names, cuts)
		text := ""
		for i, r := range rules {
			if i > 0 {
				text += ","
			}
			text += r.algorithm + ":" + formatBytes(r.from) + "-" + formatBytes(r.to)
		}
		if got, ok := parseAlgo(text); !ok || !cmp.Equal(got, rules, cmp.AllowUnexported(rule{})) {
			t.Fatalf("%s: %v %v", text, got, ok)
		}
	})
}

func TestSelection(t *testing.T) {
	for world := 2; world <= 16; world++ {
		s, forced := newSelection(&Config{Wire: allreduce.F16}, world)
		if forced || s.algorithm(4096) != allreduce.AlgorithmSingleShot || s.wireFor(4096) != allreduce.F32 {
			t.Errorf("n=%d: decode sizes: %v", world, s.String())
		}
		if s.algorithm(64<<20) == allreduce.AlgorithmSingleShot || s.wireFor(64<<20) != allreduce.F16 {
			t.Errorf("n=%d: large sizes: %v", world, s.String())
		}
		s, _ = newSelection(&Config{Wire: allreduce.F16, FP32: true, Ring: true}, world)
		if s.algorithm(64<<20) != allreduce.AlgorithmRing || s.wireFor(64<<20) != allreduce.F32 || s.algorithm(4096) != allreduce.AlgorithmSingleShot {
			t.Errorf("n=%d: FP32 and RING: %v", world, s.String())
		}
	}
}

func TestFasterRules(t *testing.T) {
	times := map[string][]float64{
		"singleshot": {10, 20, 100, 400},
		"pipeline":   {30, 25, 60, 200},
		"twoshot":    {40, 40, 61, 300},
	}
	if got := fastest([]int64{16 << 10, 1 << 20}, map[string][]float64{"singleshot": {50, 100}, "relay": {20, math.Inf(1)}}); !cmp.Equal(got,
		[]rule{{"relay", 0, 128 << 10}, {"singleshot", 128 << 10, maxBytes}}, cmp.AllowUnexported(rule{})) {
		t.Error(got)
	}
	got := fastest([]int64{16 << 10, 64 << 10, 256 << 10, 1 << 20}, times)
	want := []rule{{"singleshot", 0, 128 << 10}, {"pipeline", 128 << 10, maxBytes}}
	if !cmp.Equal(got, want, cmp.AllowUnexported(rule{})) {
		t.Error(got)
	}
}

func TestRelayGivesWay(t *testing.T) {
	s := selection{rules: []rule{{allreduce.AlgorithmRelay, 0, maxBytes}}}
	if got := s.algorithm(4); got != allreduce.AlgorithmSingleShot {
		t.Errorf("without a relay: %s", got)
	}
	s.relay = true
	for bytes, want := range map[int64]string{4: "relay", relayBytes: "relay", relayBytes + 4: "singleshot"} {
		if got := s.algorithm(bytes); got != want {
			t.Errorf("%d bytes: %s, want %s", bytes, got, want)
		}
	}
}
