package vkimpl

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ggmlvkcomm/allreduce"
)

// The reduce kernels against float32 sums of what the reference encoding yields.

// reduction is one Reduce step on rank 0, made by hand.
type reduction struct {
	wire    allreduce.Wire
	sources int
	own     int // the source that is the tensor; sources: none
	zero    uint64
	publish bool
	values  [][]uint32 // by source
}

func (x reduction) String() string {
	return fmt.Sprintf("%v, %d sources of %d elements, own %d, zero %b, publish %v", x.wire, x.sources, len(x.values[0]), x.own, x.zero, x.publish)
}

// want is the tensor and the published words.
func (x reduction) want() (sum []float32, published []uint32) {
	operands := make([][]float32, x.sources)
	for s := range operands {
		operands[s] = floatsOf(x.values[s])
		if x.zero>>s&1 != 0 {
			clear(operands[s])
		} else if s != x.own {
			x.wire.Round(operands[s])
		}
	}
	sum = allreduce.Butterfly(operands, func(a, b []float32) []float32 {
		for i := range a {
			a[i] += b[i]
		}
		return a
	})
	if x.publish {
		published = encode(x.wire, sum)
		x.wire.Round(sum)
	}
	return sum, published
}

// run does it: encoded sources are put in slots of rank 0's staging, the sum is
// published behind them.
func (x reduction) run(t fataler, g *rig) {
	g.t.Helper()
	count := int64(len(x.values[0]))
	words := x.wire.Bytes(count) / 4
	slot := func(s int) allreduce.Region { return allreduce.StagingAt(0, int64(s)*8192) }
	step := allreduce.Step{Op: allreduce.Reduce, Count: count, Dst: allreduce.TensorAt(0, 0)}
	g.reset()
	tensor := g.take(count, 1)
	for s := range x.sources {
		region := slot(s)
		switch {
		case s == x.own && x.zero>>s&1 != 0:
			region = allreduce.Region{Space: allreduce.Zero, Rank: 0}
			copy(g.part(0, tensor[0], count), slices.Repeat([]uint32{canary}, int(count)))
		case s == x.own:
			region = allreduce.TensorAt(0, 0)
			copy(g.part(0, tensor[0], count), x.values[s])
		case x.zero>>s&1 != 0:
			region = allreduce.Region{Space: allreduce.Zero, Rank: 1}
		default:
			in := g.take(words, 1)
			copy(g.part(0, in[0], words), encode(x.wire, floatsOf(x.values[s])))
			g.move(0, words, region, allreduce.TensorAt(0, 0), in[0])
		}
		step.Srcs = append(step.Srcs, region)
	}
	if x.publish {
		to := slot(x.sources)
		step.Publish = &to
	}
	g.step(0, x.wire, tensor, step)

	sum, published := x.want()
	for i, w := range g.part(0, tensor[0], count) {
		if !sameBits(w, math.Float32bits(sum[i])) {
			t.Fatalf("%v: element %d is %g (%#08x), want %g", x, i, math.Float32frombits(w), w, sum[i])
		}
	}
	if x.publish {
		out := g.take(words, 1)
		g.move(0, words, allreduce.TensorAt(0, 0), slot(x.sources), out[0])
		got, want := make([]float32, count), make([]float32, count)
		x.wire.Decode(got, bytesOf(g.part(0, out[0], words)))
		x.wire.Decode(want, bytesOf(published)) // NaN payloads may differ
		for i := range got {
			if !sameBits(math.Float32bits(got[i]), math.Float32bits(want[i])) {
				t.Fatalf("%v: published element %d is %g, want %g", x, i, got[i], want[i])
			}
		}
	}
	for _, at := range []uint64{0, tensor[0].Offset/4 + uint64(count)} {
		if w := g.words(0)[at]; w != canary {
			t.Fatalf("%v: word %d, beside the tensor, is %#08x", x, at, w)
		}
	}
}

// drawOperands draws values whose sums are no denormals, which devices may
// flush, and now and then a special one.
func drawOperands(t *rapid.T, sources, count int) [][]uint32 {
	rng := seeded(rapid.Uint64().Draw(t, "seed"))
	special := rapid.Bool().Draw(t, "special")
	spread := rapid.IntRange(1, 60).Draw(t, "spread")
	v := make([][]uint32, sources)
	for s := range v {
		v[s] = make([]uint32, count)
		for i := range v[s] {
			x := float32(math.Ldexp(rng.Float64()-0.5, rng.IntN(spread)-4))
			if special && rng.IntN(16) == 0 {
				x = []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 0,
					float32(math.Copysign(0, -1)), math.MaxFloat32, -math.MaxFloat32}[rng.IntN(7)]
			}
			v[s][i] = math.Float32bits(x)
		}
	}
	return v
}

func TestReduceIsTheReferenceSum(t *testing.T) {
	const most = 5
	g := openRig(t, most, 1<<17, 1<<13)
	rapid.Check(t, func(t *rapid.T) {
		x := reduction{
			wire:    rapid.SampledFrom([]allreduce.Wire{allreduce.F32, allreduce.F16, allreduce.BF16}).Draw(t, "wire"),
			sources: rapid.SampledFrom([]int{1, 3, most}).Draw(t, "sources"),
			publish: rapid.Bool().Draw(t, "publish"),
		}
		x.own = rapid.SampledFrom([]int{0, x.sources - 1, x.sources}).Draw(t, "own")
		x.zero = rapid.Uint64Range(0, 1<<x.sources-1).Draw(t, "zero")
		count := rapid.SampledFrom([]int{1, 2, 3, 127, 255, 256, 257, 700}).Draw(t, "count")
		x.values = drawOperands(t, x.sources, count)
		x.run(t, g)
	})
}
