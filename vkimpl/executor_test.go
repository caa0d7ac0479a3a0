package vkimpl

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ggmlvkcomm/allreduce"
)

// Schedules on devices against the same schedules on slices, bit by bit.

const (
	// staging makes a few thousand elements run through several rounds, and
	// holds a block of F32 for each of 5 ranks in each half.
	staging = 16 << 10
	// tensorFloats is room for the longest sequence of reductions.
	tensorFloats = 1 << 18
)

var allWires = []allreduce.Wire{allreduce.F32, allreduce.F16, allreduce.BF16}

// chain builds consecutive reductions, each beginning with the staging half
// whose turn it is.
type chain struct {
	g    *rig
	half int
	seq  []*allreduce.Schedule
}

func (c *chain) add(algorithm string, p allreduce.Params) {
	c.g.t.Helper()
	p.World, p.Half, p.HalfBytes = c.g.world, c.half, c.g.HalfBytes()
	s, err := allreduce.Build(algorithm, p)
	must(c.g.t, err)
	c.half = (c.half + s.Rounds) % 2
	c.seq = append(c.seq, s)
}

// operands makes one reduction's tensors: values of very different magnitude,
// so that sums depend on their order, and NaN on zero ranks.
func operands(s *allreduce.Schedule, rng *rand.Rand) [][]float32 {
	v := make([][]float32, s.World)
	for r := range v {
		v[r] = make([]float32, s.Elements)
		for i := range v[r] {
			v[r][i] = float32(math.Ldexp(rng.Float64()-0.5, rng.IntN(24)-4))
			if s.ZeroRanks>>r&1 != 0 {
				v[r][i] = float32(math.NaN())
			}
		}
	}
	return v
}

// compare runs seq on the devices, all of it submitted before anything is
// waited for, and on a simulator. Every reduction has tensors of its own, at
// odd places, and nothing between them may change.
func (g *rig) compare(seq []*allreduce.Schedule, rng *rand.Rand) {
	g.t.Helper()
	g.reset()
	var want [][][]float32
	var bindings [][]Binding
	for _, s := range seq {
		v := operands(s, rng)
		b := g.take(s.Elements, 1+rng.Int64N(70))
		for r := range v {
			copy(g.part(r, b[r], s.Elements), bitsOf(v[r]))
		}
		want, bindings = append(want, v), append(bindings, b)
	}
	must(g.t, allreduce.NewSimulator(g.world, g.HalfBytes()).Run(seq, want, nil))
	g.run(seq, bindings)
	for i, s := range seq {
		for r := range g.world {
			what := fmt.Sprintf("reduction %d, %s, %v, n=%d, zero ranks %b, rank %d", i, s.Algorithm, s.Wire, s.World, s.ZeroRanks, r)
			expect(g.t, what, g.part(r, bindings[i][r], s.Elements), bitsOf(want[i][r]))
		}
	}
	for r := range g.world {
		rest := slices.Clone(g.words(r))
		for i, s := range seq {
			for k := range s.Elements {
				rest[int64(bindings[i][r].Offset/4)+k] = canary
			}
		}
		for i, w := range rest {
			if w != canary {
				g.t.Fatalf("rank %d: word %d, which is no tensor's, is %#08x", r, i, w)
			}
		}
	}
}

// masks of zero ranks and of transfer queues: none, the first, all but the
// first, all.
func masks(world int) []uint64 {
	all := uint64(1)<<world - 1
	return []uint64{0, 1, all &^ 1, all}
}

// worlds are the numbers of ranks. A software driver that has no kernel in its
// cache yet compiles for some 20 s.
func worlds() []int {
	if testing.Short() {
		return []int{2, 3}
	}
	return []int{2, 3, 4, 5}
}

// everyShape is one algorithm and wire at all sizes and masks.
func (g *rig) everyShape(algorithm string, wire allreduce.Wire) []*allreduce.Schedule {
	c := &chain{g: g}
	for _, elements := range []int64{1, 255, 257, 3*g.HalfBytes()/4 + 123} { // the last in several rounds
		for i, zero := range masks(g.world) {
			c.add(algorithm, allreduce.Params{Elements: elements, Wire: wire, ZeroRanks: zero,
				TransferQueue: masks(g.world)[(i+int(elements))%4]})
		}
	}
	return c.seq
}

func TestSchedulesMatchTheSimulator(t *testing.T) {
	for _, world := range worlds() {
		t.Run(fmt.Sprintf("n=%d", world), func(t *testing.T) {
			g := openRig(t, world, staging, tensorFloats)
			rng := seeded(uint64(world))
			g.eachOrdering(func() {
				for _, algorithm := range allreduce.Algorithms() {
					for _, wire := range allWires {
						g.compare(g.everyShape(algorithm, wire), rng)
					}
				}
			})
		})
	}
}

// mixed adds random reductions of any kind.
func (c *chain) mixed(count int, rng *rand.Rand) {
	all := uint64(1)<<c.g.world - 1
	for range count {
		p := allreduce.Params{Elements: 1 + rng.Int64N(int64(1)<<rng.IntN(14)), Wire: allWires[rng.IntN(3)],
			TransferQueue: rng.Uint64() & all}
		if rng.IntN(3) == 0 {
			p.ZeroRanks = rng.Uint64() & all
		}
		if rng.IntN(2) == 0 {
			p.ChunkBytes = 1024 << rng.IntN(3)
		}
		algorithms := allreduce.Algorithms()
		c.add(algorithms[rng.IntN(len(algorithms))], p)
	}
}

func TestMixedSequencesMatchTheSimulator(t *testing.T) {
	for _, world := range worlds() {
		t.Run(fmt.Sprintf("n=%d", world), func(t *testing.T) {
			g := openRig(t, world, staging, tensorFloats)
			rng := seeded(uint64(10 + world))
			g.eachOrdering(func() {
				c := &chain{g: g}
				for range 4 {
					c.seq = nil
					c.mixed(24, rng)
					g.compare(c.seq, rng)
				}
			})
		})
	}
}

func TestAProgramIsSubmittedAgainWhilePending(t *testing.T) {
	const times, elements = 20, 1000
	g := openRig(t, 3, staging, tensorFloats)
	c := &chain{g: g}
	c.add(allreduce.AlgorithmSingleShot, allreduce.Params{Elements: elements, ChunkBytes: 2048})
	if c.half != 0 {
		t.Fatalf("%d rounds: the schedule has to begin where it ends", c.seq[0].Rounds)
	}
	b := g.take(elements, 1)
	for r := range g.world {
		for i := range g.part(r, b[r], elements) {
			g.part(r, b[r], elements)[i] = math.Float32bits(float32(i + r))
		}
	}
	p, err := g.Program(c.seq[0], b)
	must(t, err)
	defer p.Close()
	for range times {
		must(t, g.Submit(p))
	}
	g.drain()
	for r := range g.world {
		for i, w := range g.part(r, b[r], elements) {
			want := float32(3 * (i + 1)) // then three times that each time
			for range times - 1 {
				want = want + want + want
			}
			if got := math.Float32frombits(w); got != want {
				t.Fatalf("rank %d: element %d is %g after %d reductions, want %g", r, i, got, times, want)
			}
		}
	}
}

func TestSubmitAllocatesNothing(t *testing.T) {
	g := openRig(t, 2, staging, tensorFloats)
	for _, algorithm := range allreduce.Algorithms() {
		c := &chain{g: g}
		c.add(algorithm, allreduce.Params{Elements: 2 * g.HalfBytes() / 4, TransferQueue: 3})
		p, err := g.Program(c.seq[0], g.take(c.seq[0].Elements, 0))
		must(t, err)
		defer p.Close()
		if n := testing.AllocsPerRun(20, func() { must(t, g.Submit(p)) }); n != 0 {
			t.Errorf("%s: Submit allocates %v times", algorithm, n)
		}
		g.drain()
	}
}

func TestReadSeesTheSum(t *testing.T) {
	g := openRig(t, 2, staging, tensorFloats)
	c := &chain{g: g}
	c.add(allreduce.AlgorithmTwoShot, allreduce.Params{Elements: 777})
	b := g.take(777, 5)
	for r := range g.world {
		for i := range g.part(r, b[r], 777) {
			g.part(r, b[r], 777)[i] = math.Float32bits(float32(r + i))
		}
	}
	p, err := g.Program(c.seq[0], b)
	must(t, err)
	defer p.Close()
	must(t, g.Submit(p))
	to, _, err := g.HostBuffer(1, 777)
	must(t, err)
	defer to.Close()
	must(t, g.Read(1, b[1], to, 777, drainTimeout))
	for i, x := range to.Floats() {
		if x != float32(2*i+1) {
			t.Fatalf("element %d is %g, want %d", i, x, 2*i+1)
		}
	}
}

func TestReleaseLetsWaitingQueuesGo(t *testing.T) {
	const elements = 1 << 11
	g := openRig(t, 2, staging, tensorFloats)
	s := allreduce.ByHand(2, allreduce.F32, g.HalfBytes(), func(rank int) []allreduce.Step {
		return []allreduce.Step{{Op: allreduce.Unpack, Count: elements, Dst: allreduce.TensorAt(rank, 0), Srcs: []allreduce.Region{allreduce.StagingAt(rank, 0)}}}
	})
	// Rank 0 waits for a signal of rank 1 that is submitted nowhere.
	s.Batches[0].Waits = []allreduce.Wait{{Point: allreduce.Point{Rank: 1, Queue: allreduce.Compute, Value: 1}}}
	p, err := g.Program(s, g.bindings)
	must(t, err)
	defer p.Close()
	must(t, g.Submit(p))
	ok, err := g.Drain(0, 50*time.Millisecond)
	must(t, err)
	if ok || g.words(0)[0] != canary {
		t.Fatal("rank 0 does not wait for rank 1")
	}
	g.Release()
	g.drain()
	if w := g.words(0)[elements-1]; w != 0 {
		t.Fatalf("Drain did not wait for the batch that was released: the tensor has %#08x", w)
	}
}
