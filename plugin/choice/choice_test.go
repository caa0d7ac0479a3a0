package choice

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ggmlvkcomm/allreduce"
)

func TestParse(t *testing.T) {
	rules, ok := Parse("singleshot:0-256K,pipeline:256K-3M,ring:3M-max")
	want := Rules{{"singleshot", 0, 256 << 10}, {"pipeline", 256 << 10, 3 << 20}, {"ring", 3 << 20, MaxBytes}}
	if !ok || !cmp.Equal(rules, want) {
		t.Error(rules, ok)
	}
	for _, bad := range []string{
		"", "singleshot", "singleshot:0", "singleshot:0-1M", "singleshot:1-max", "singleshot:0-1M,ring:2M-max",
		"singleshot:0-1M,ring:1M-1M,ring:1M-max", "tree:0-max", "singleshot:0-max,", "singleshot:0-1G,ring:1G-max",
		"singleshot:-1-max", "singleshot:0-99999999999999M,ring:99999999999999M-max",
	} {
		if rules, ok := Parse(bad); ok {
			t.Errorf("%q accepted as %v", bad, rules)
		}
	}
}

// The log's form of rules is what the variable accepts.
func TestPrintsWhatParseReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cuts := rapid.SliceOfNDistinct(rapid.Int64Range(1, 1<<32), 0, 4, rapid.ID).Draw(t, "cuts")
		names := rapid.SliceOfN(rapid.SampledFrom(Names()), len(cuts)+1, len(cuts)+1).Draw(t, "names")
		rules := rulesOf(names, cuts)
		if got, ok := Parse(rules.String()); !ok || !cmp.Equal(got, rules) {
			t.Fatalf("%s: %v %v", rules, got, ok)
		}
	})
}

func TestFastest(t *testing.T) {
	times := map[string][]float64{
		"singleshot": {10, 20, 100, 400},
		"pipeline":   {30, 25, 60, 200},
		"twoshot":    {40, 40, 61, 300},
	}
	if got := Fastest([]int64{16 << 10, 1 << 20}, map[string][]float64{"singleshot": {50, 100}, "relay": {20, math.Inf(1)}}, nil); !cmp.Equal(got,
		Rules{{"relay", 0, 128 << 10}, {"singleshot", 128 << 10, MaxBytes}}) {
		t.Error(got)
	}
	got := Fastest([]int64{16 << 10, 64 << 10, 256 << 10, 1 << 20}, times, nil)
	if want := (Rules{{"singleshot", 0, 128 << 10}, {"pipeline", 128 << 10, MaxBytes}}); !cmp.Equal(got, want) {
		t.Error(got)
	}
}

// Sizes that were not reached keep the table.
func TestFastestOfSome(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		single, relay, pipeline []float64
		want                    string
	}{
		{[]float64{20, 25, inf, inf, inf, inf}, []float64{10, 30, inf, inf, inf, inf}, []float64{inf, inf, inf, inf, inf, inf},
			"relay:0-32K,singleshot:32K-8M,pipeline:8M-max"},
		{[]float64{20, 25, 30, 60, inf, inf}, []float64{30, 30, inf, inf, inf, inf}, []float64{inf, inf, 20, 40, inf, inf},
			"singleshot:0-128K,pipeline:128K-2M,singleshot:2M-8M,pipeline:8M-max"},
		{[]float64{inf, inf, inf, inf, inf, inf}, []float64{inf, inf, inf, inf, inf, inf}, []float64{inf, inf, inf, inf, inf, inf},
			"singleshot:0-8M,pipeline:8M-max"},
	} {
		times := map[string][]float64{"singleshot": c.single, "relay": c.relay, "pipeline": c.pipeline}
		if got := Fastest(Sizes, times, Default(2)).String(); got != c.want {
			t.Errorf("single-shot %v: %s, want %s", c.single, got, c.want)
		}
	}
}

// What is within its margin stays with single-shot; the fastest of the others
// need not be the one that is not.
func TestFastestByTheMargin(t *testing.T) {
	for _, c := range []struct {
		pipeline, relay float64
		want            string
	}{
		{100, 101, "singleshot:0-max"}, {91, 100, "singleshot:0-max"}, {89, 101, "pipeline:0-max"},
		{91, 99, "relay:0-max"}, {80, 99, "pipeline:0-max"}, {89, 80, "relay:0-max"},
	} {
		times := map[string][]float64{"singleshot": {100}, "pipeline": {c.pipeline}, "relay": {c.relay}}
		if got := Fastest([]int64{16 << 10}, times, nil); got.String() != c.want {
			t.Errorf("pipeline %g, relay %g, single-shot 100: %v, want %s", c.pipeline, c.relay, got, c.want)
		}
	}
}

func TestRelayGivesWay(t *testing.T) {
	for _, c := range []struct{ rules, with, without string }{
		{"relay:0-max", "relay:0-256K,singleshot:256K-max", "singleshot:0-max"},
		{"relay:0-64K,pipeline:64K-max", "relay:0-64K,pipeline:64K-max", "singleshot:0-64K,pipeline:64K-max"},
		{"relay:0-1M,singleshot:1M-8M,ring:8M-max", "relay:0-256K,singleshot:256K-8M,ring:8M-max", "singleshot:0-8M,ring:8M-max"},
		{"twoshot:0-4K,relay:4K-256K,twoshot:256K-max", "twoshot:0-4K,relay:4K-256K,twoshot:256K-max",
			"twoshot:0-4K,singleshot:4K-256K,twoshot:256K-max"},
		{"singleshot:0-256K,relay:256K-max", "singleshot:0-max", "singleshot:0-max"},
		{"ring:0-max", "ring:0-max", "ring:0-max"},
	} {
		rules, ok := Parse(c.rules)
		if with, without := rules.Usable(true).String(), rules.Usable(false).String(); !ok || with != c.with || without != c.without {
			t.Errorf("%s: with a relay %s, want %s; without %s, want %s", c.rules, with, c.with, without, c.without)
		}
		if rules.String() != c.rules {
			t.Errorf("%s has become %s", c.rules, rules)
		}
	}
}

func TestAlgorithm(t *testing.T) {
	rules, _ := Parse("relay:0-32K,singleshot:32K-max")
	for bytes, want := range map[int64]string{0: "relay", 4: "relay", 32<<10 - 4: "relay", 32 << 10: "singleshot", MaxBytes: "singleshot"} {
		if got := rules.Algorithm(bytes); got != want {
			t.Errorf("%d bytes: %s, want %s", bytes, got, want)
		}
	}
}

func TestCopyQueues(t *testing.T) {
	if got := CopyQueues(0b1011, []uint32{0x1002, 0x10de, 0x1002, 0x8086}); got != 0b1001 {
		t.Errorf("%#b", got)
	}
}

func TestEverySizeHasCandidates(t *testing.T) {
	for _, relay := range []bool{false, true} {
		for _, bytes := range Sizes {
			for _, name := range Candidates(relay, bytes) {
				if name == allreduce.AlgorithmRelay && bytes > RelayBytes {
					t.Errorf("%d bytes: %s takes %d at most", bytes, name, int64(RelayBytes))
				}
			}
		}
	}
}
