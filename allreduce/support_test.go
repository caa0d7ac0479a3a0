package allreduce

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// mustBuild builds a schedule that is known to be possible.
func mustBuild(t testing.TB, algorithm string, p Params) *Schedule {
	t.Helper()
	s, err := Build(algorithm, p)
	if err != nil {
		t.Fatalf("%s %+v: %v", algorithm, p, err)
	}
	return s
}

// chain builds consecutive reductions, each beginning with the half whose turn
// it is.
type chain struct {
	half int
	seq  []*Schedule
}

func (c *chain) add(t testing.TB, algorithm string, p Params) *Schedule {
	t.Helper()
	p.Half = c.half
	s := mustBuild(t, algorithm, p)
	c.half = (c.half + s.Rounds) % 2
	c.seq = append(c.seq, s)
	return s
}

// operands makes one reduction's tensors: values of very different magnitude,
// so that sums depend on their order, and NaN on zero ranks.
func operands(s *Schedule, rng *rand.Rand) [][]float32 {
	v := make([][]float32, s.World)
	for r := range v {
		v[r] = make([]float32, s.Elements)
		for i := range v[r] {
			v[r][i] = float32(math.Ldexp(rng.Float64()-0.5, rng.IntN(24)-4))
			if s.ZeroRanks>>uint(r)&1 != 0 {
				v[r][i] = float32(math.NaN())
			}
		}
	}
	return v
}

// references computes what a reduction may end as, without a schedule: one
// tensor, or for the ring one for each rank that a chain can begin at.
func references(s *Schedule, operands [][]float32) [][]float32 {
	add := func(a, b []float32) []float32 {
		for i := range a {
			a[i] += b[i]
		}
		return a
	}
	v := make([][]float32, s.World)
	for r := range v {
		v[r] = slices.Clone(operands[r])
		if s.ZeroRanks>>uint(r)&1 != 0 {
			clear(v[r])
		}
	}
	if s.Algorithm == AlgorithmRing {
		chains := make([][]float32, s.World)
		for c := range chains {
			sum := slices.Clone(v[c])
			s.Wire.Round(sum)
			for i := 1; i < s.World; i++ {
				s.Wire.Round(add(sum, v[(c+i)%s.World]))
			}
			chains[c] = sum
		}
		return chains
	}
	for r := range v {
		s.Wire.Round(v[r])
	}
	sum := Butterfly(v, add)
	if s.Algorithm == AlgorithmTwoShot {
		s.Wire.Round(sum)
	}
	return [][]float32{sum}
}

// compare reports the first element at which a rank holds other bits than the
// reference, block by block with the one reference that fits rank 0 there.
func compare(s *Schedule, got, want [][]float32) error {
	for first := int64(0); first < s.Elements; first += F16Block {
		end := min(first+F16Block, s.Elements)
		same := func(a, b []float32) bool {
			return slices.EqualFunc(a[first:end], b[first:end], func(x, y float32) bool {
				return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
			})
		}
		match := slices.IndexFunc(want, func(w []float32) bool { return same(got[0], w) })
		if match < 0 {
			return fmt.Errorf("%s: rank 0 elements %d..%d: not the documented sum", s.Algorithm, first, end)
		}
		for r := range got {
			if !same(got[r], want[match]) {
				return fmt.Errorf("%s: rank %d elements %d..%d: other bits than rank 0", s.Algorithm, r, first, end)
			}
		}
	}
	return nil
}

// simulate runs seq and compares every result with its reference.
func simulate(seq []*Schedule, data, order *rand.Rand) error {
	m := NewSimulator(seq[0].World, seq[0].HalfBytes)
	var all, want [][][]float32
	for _, s := range seq {
		v := operands(s, data)
		all = append(all, v)
		want = append(want, references(s, v))
	}
	if err := m.Run(seq, all, order); err != nil {
		return err
	}
	for i, s := range seq {
		if err := compare(s, all[i], want[i]); err != nil {
			return fmt.Errorf("reduction %d: %w", i, err)
		}
	}
	return nil
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// clone copies a schedule so that it can be changed.
func clone(s *Schedule) *Schedule {
	c := *s
	c.Signals = slices.Clone(s.Signals)
	c.Batches = slices.Clone(s.Batches)
	for i := range c.Batches {
		b := &c.Batches[i]
		b.Waits = slices.Clone(b.Waits)
		b.Steps = slices.Clone(b.Steps)
		for k := range b.Steps {
			st := &b.Steps[k]
			st.Srcs = slices.Clone(st.Srcs)
			if st.Publish != nil {
				p := *st.Publish
				st.Publish = &p
			}
		}
	}
	return &c
}
