package allreduce

import (
	"fmt"
	"strings"
	"testing"
)

// fault is a schedule that was changed so that it breaks one rule.
type fault struct {
	name      string
	algorithm string
	p         Params
	spoil     func(s *Schedule)
	want      string // part of the error
}

// small is two ranks and one round; large has several rounds.
var (
	small = Params{World: 2, Elements: 300, HalfBytes: 4096}
	large = Params{World: 3, Elements: 3000, HalfBytes: 4096, ChunkBytes: 2048}
)

func (p Params) with(change func(p *Params)) Params {
	change(&p)
	return p
}

// find is the first step that does op.
func find(s *Schedule, op Op) *Step {
	for i := range s.Batches {
		for k := range s.Batches[i].Steps {
			if st := &s.Batches[i].Steps[k]; st.Op == op {
				return st
			}
		}
	}
	panic("no such step")
}

var timelineFaults = []fault{
	{"wait for a value never signalled", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Batches[2].Waits[0].Value = 2 }, "dead-lock"},
	{"wait for a later batch", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Batches[0], s.Batches[2] = s.Batches[2], s.Batches[0] }, "dead-lock"},
	{"wait for a rank that does not exist", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Batches[2].Waits[0].Rank = 2 }, "waits for queue 0 of rank 2"},
	{"batch of a rank that does not exist", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Batches[2].Rank = -1 }, "no queue 0 of rank -1"},
	{"values do not increase", AlgorithmSingleShot, large,
		func(s *Schedule) { s.Batches[6].Signal = 1 }, "signals 1 after 1"},
	{"value too far ahead", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Batches[0].Signal = 1 << 31 }, "signals 2147483648, beyond 2147483647"},
	{"signal missing", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Batches[0].Signal = 0 }, "dead-lock"},
	{"Signals is wrong", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Signals[1][Compute]++ }, "ends at value 1, Signals says 2"},
	{"Signals is short", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Signals = s.Signals[:1] }, "signals of 1 ranks"},
	{"wait for the last reduction instead", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Batches[2].Waits[0].Value = 0 }, "not surely written"},
	{"transfer queue left running", AlgorithmPipeline,
		large.with(func(p *Params) { p.TransferQueue, p.Wire = 1, BF16 }),
		func(s *Schedule) {
			for i := range s.Batches {
				b := &s.Batches[i]
				for w, wait := range b.Waits {
					if b.Rank == 0 && wait.Rank == 0 && wait.Queue == Transfer && wait.Value == s.Signals[0][Transfer] {
						b.Waits = append(b.Waits[:w:w], b.Waits[w+1:]...)
					}
				}
			}
		}, "ends without a wait for its transfer queue"},
	{"transfer queue begins before the graph ends", AlgorithmPipeline,
		small.with(func(p *Params) { p.TransferQueue = 1 }),
		func(s *Schedule) {
			for i := range s.Batches {
				if s.Batches[i].Queue == Transfer {
					s.Batches[i].Waits = nil
				}
			}
		}, "not surely written by the graph"},
}

var regionFaults = []fault{
	{"staging of another rank", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Pack).Dst.Rank = 1 }, "writes memory of rank 1"},
	{"tensor of another rank", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Pack).Srcs[0].Rank = 1 }, "reads tensor of rank 1"},
	{"source of no rank", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Reduce).Srcs[1].Rank = 7 }, "reads memory of rank 7"},
	{"unaligned staging", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Pack).Dst.Offset = 128 }, "not a multiple of 256"},
	{"staging out of bounds", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Pack).Dst.Offset = 8192 - 256 }, "out of bounds"},
	{"staging before its start", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Pack).Dst.Offset = -256 }, "out of bounds"},
	{"staging across the halves", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Pack).Dst.Offset = 4096 - 256 }, "both halves"},
	{"the other half", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Pack).Dst.Offset = 4096 }, "the first round uses half 0"},
	{"halves not in turn", AlgorithmSingleShot, large,
		func(s *Schedule) { s.Rounds = 1 }, "change more often than 1 rounds"},
	{"too many rounds", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Rounds = 2 }, "Rounds says 1"},
	{"tensor out of bounds", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Reduce).Dst.Offset = 256 }, "the tensor has 300"},
	{"tensor cut inside a block", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Pack).Count = 100 }, "not at multiples of 256"},
	{"no elements", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Pack).Count = 0 }, "of 0 elements"},
	{"part of a region", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Reduce).Count = 256 }, "not written as one region"},
	{"wrong elements", AlgorithmSingleShot, large,
		func(s *Schedule) {
			st := find(s, Reduce)
			st.Dst.Offset = 512
			for i := range st.Srcs {
				if st.Srcs[i].Space == Tensor {
					st.Srcs[i].Offset = 512
				}
			}
		}, "takes elements 0.."},
	{"own operand from elsewhere", AlgorithmSingleShot, large,
		func(s *Schedule) {
			for i, st := 0, find(s, Reduce); i < len(st.Srcs); i++ {
				if st.Srcs[i].Space == Tensor {
					st.Srcs[i].Offset = 512
				}
			}
		}, "takes elements 512.."},
	{"nothing was packed", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Batches[0].Steps = nil }, "which holds data of reduction 0"},
	{"only an earlier round packed", AlgorithmSingleShot, large,
		func(s *Schedule) { s.Batches[12].Steps = nil }, "takes elements 0.. of staging[0] bytes 0..2048 for elements 1024.."},
}

var stepFaults = []fault{
	{"unknown operation", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Pack).Op = 9 }, "unknown operation 9"},
	{"pack of a zero", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Pack).Srcs[0].Space = Zero }, "pack cannot read zero"},
	{"pack into a tensor", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Pack).Dst.Space = Tensor }, "pack cannot write tensor"},
	{"unknown memory", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Reduce).Srcs[0].Space = 9 }, "cannot read unknown memory"},
	{"pack of two", AlgorithmSingleShot, small,
		func(s *Schedule) { st := find(s, Pack); st.Srcs = append(st.Srcs, st.Srcs[0]) }, "pack of 2 sources"},
	{"sum of nothing", AlgorithmSingleShot, small,
		func(s *Schedule) { find(s, Reduce).Srcs = nil }, "reduce of 0 sources"},
	{"pack publishes", AlgorithmSingleShot, small,
		func(s *Schedule) { st := find(s, Pack); st.Publish = &st.Dst }, "pack publishes"},
	{"published in a tensor", AlgorithmTwoShot, small,
		func(s *Schedule) { find(s, Reduce).Publish.Space = Tensor }, "cannot publish to tensor"},
	{"published elsewhere", AlgorithmTwoShot, small,
		func(s *Schedule) { find(s, Reduce).Publish.Rank ^= 1 }, "publishes in memory of rank"},
	{"sum on a transfer queue", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Batches[2].Queue = Transfer }, "a transfer queue cannot reduce"},
	{"encoding on a transfer queue", AlgorithmSingleShot, small.with(func(p *Params) { p.Wire = F16 }),
		func(s *Schedule) { s.Batches[0].Queue = Transfer }, "a transfer queue cannot pack on a wire of f16"},
	{"steps that depend on each other", AlgorithmTwoShot, small.with(func(p *Params) { p.Wire = F16 }),
		func(s *Schedule) { // rank 0 rounds its slice and sums it in one batch
			b := &s.Batches[3]
			b.Steps = append([]Step{s.Batches[0].Steps[0]}, b.Steps...)
			s.Batches[0].Steps = s.Batches[0].Steps[1:]
		}, "not surely written by rank 0 compute in reduction 2 batch 3 step 0 (RAW)"},
	{"published onto a source", AlgorithmTwoShot, small,
		func(s *Schedule) { // rank 1's slice comes from its own staging as well
			st := find(s, Reduce)
			s.Batches[1].Steps = append(s.Batches[1].Steps, Step{Op: Pack, Count: st.Count,
				Dst: *st.Publish, Srcs: []Region{st.Dst}})
			st.Srcs[1] = *st.Publish
		}, "still read by rank 1"},
}

var sumFaults = []fault{
	{"sources out of order", AlgorithmSingleShot, large,
		func(s *Schedule) { st := find(s, Reduce); st.Srcs[0], st.Srcs[1] = st.Srcs[1], st.Srcs[0] },
		"end as ((x1+x2)+x0), want ((x0+x2)+x1)"},
	{"source left out", AlgorithmSingleShot, small,
		func(s *Schedule) { st := find(s, Reduce); st.Srcs = st.Srcs[:1] }, "end as x0, want (x0+x1)"},
	{"source twice", AlgorithmSingleShot, small,
		func(s *Schedule) { st := find(s, Reduce); st.Srcs[0] = st.Srcs[1] }, "end as (x1+x1)"},
	{"rank left out", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Batches = s.Batches[:3] }, "rank 0 elements 0..300 end as x0"},
	{"memory of a zero rank", AlgorithmSingleShot, small.with(func(p *Params) { p.ZeroRanks = 2 }),
		func(s *Schedule) { find(s, Reduce).Srcs[1].Space = Tensor }, "(x0+stale1)"},
	{"a zero rank that is none", AlgorithmSingleShot, small,
		func(s *Schedule) { s.ZeroRanks = 1 }, "stale0"},
	{"sum not published", AlgorithmTwoShot, small.with(func(p *Params) { p.Elements = 900 }),
		func(s *Schedule) { find(s, Reduce).Publish = nil }, "which was never written"},
	{"other chains on other ranks", AlgorithmSingleShot, small,
		func(s *Schedule) {
			s.Algorithm = AlgorithmRing
			st := find(s, Reduce)
			st.Srcs[0], st.Srcs[1] = st.Srcs[1], st.Srcs[0]
		}, "rank 1 ends with other bits than rank 0"},
	{"unknown algorithm", AlgorithmSingleShot, small,
		func(s *Schedule) { s.Algorithm = "tree" }, `no sum is documented for algorithm "tree"`},
	{"rounded by some only", AlgorithmSingleShot, small.with(func(p *Params) { p.Wire = BF16 }),
		func(s *Schedule) { find(s, Reduce).Publish = &Region{Staging, 1, 2048} },
		"end as round((round(x0)+round(x1)))"},
}

var paramFaults = []fault{
	{"other world", AlgorithmSingleShot, small.with(func(p *Params) { p.World = 3 }), func(s *Schedule) {}, "earlier reductions had 2"},
	{"other staging", AlgorithmSingleShot, small.with(func(p *Params) { p.HalfBytes = 8192 }), func(s *Schedule) {}, "earlier reductions had"},
	{"half out of turn", AlgorithmSingleShot, small, func(s *Schedule) { s.Half ^= 1 }, "it is the turn of half 0"},
	{"no rounds", AlgorithmSingleShot, small, func(s *Schedule) { s.Rounds = 0 }, "0 rounds"},
	{"unknown wire", AlgorithmSingleShot, small, func(s *Schedule) { s.Wire = 7 }, "unknown wire type 7"},
	{"no ranks", AlgorithmSingleShot, small, func(s *Schedule) { s.World = 0 }, "world size 0"},
}

// testFaults adds each faulty schedule behind two good reductions.
func testFaults(t *testing.T, faults []fault, world func(p Params) int) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			var c chain
			before := Params{World: world(f.p), Elements: 300, HalfBytes: 4096}
			c.add(t, AlgorithmSingleShot, before)
			c.add(t, AlgorithmSingleShot, before)
			s := clone(c.add(t, f.algorithm, f.p))
			if err := Check(c.seq); err != nil && world(f.p) == f.p.World && f.p.HalfBytes == 4096 {
				t.Fatalf("before the change: %v", err)
			}
			f.spoil(s)
			c.seq[2] = s
			err := Check(c.seq)
			if err == nil || !strings.Contains(err.Error(), f.want) || !strings.Contains(err.Error(), "reduction 2") {
				t.Errorf("error %v, want one of reduction 2 with %q", err, f.want)
			}
		})
	}
}

func TestEveryRuleIsEnforced(t *testing.T) {
	same := func(p Params) int { return p.World }
	t.Run("timeline", func(t *testing.T) { testFaults(t, timelineFaults, same) })
	t.Run("region", func(t *testing.T) { testFaults(t, regionFaults, same) })
	t.Run("step", func(t *testing.T) { testFaults(t, stepFaults, same) })
	t.Run("sum", func(t *testing.T) { testFaults(t, sumFaults, same) })
	t.Run("params", func(t *testing.T) { testFaults(t, paramFaults, func(Params) int { return 2 }) })
	if Check([]*Schedule{nil}) == nil {
		t.Error("no schedule was accepted")
	}
}

func TestErrorsNameBothSides(t *testing.T) {
	// A zero rank that waits for nobody overwrites what others still read.
	var c chain
	var seq []*Schedule
	for i := range 3 {
		p := small
		if i == 1 {
			p.ZeroRanks = 3
		}
		s := clone(c.add(t, AlgorithmSingleShot, p))
		if i == 1 {
			s.Batches[2].Waits = nil
		}
		seq = append(seq, s)
	}
	const both = "reduction 2 batch 1 (rank 1 compute) step 0: pack overwrites staging[1] bytes 0..1200 " +
		"still read by rank 0 compute in reduction 0 batch 3 step 0 (WAR)"
	if err := Check(seq); err == nil || err.Error() != both {
		t.Errorf("error %v, want %s", err, both)
	}
}

// BenchmarkPlan builds and proves one reduction, which is what a plan costs.
func BenchmarkPlan(b *testing.B) {
	for _, algorithm := range Algorithms() {
		for _, world := range []int{2, 16} {
			b.Run(fmt.Sprint(algorithm, "/", world), func(b *testing.B) {
				p := Params{World: world, Elements: 1 << 22, HalfBytes: 8 << 20, ChunkBytes: 1 << 20}
				for b.Loop() {
					if err := Check([]*Schedule{mustBuild(b, algorithm, p)}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
