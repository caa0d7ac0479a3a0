package allreduce

import (
	"math"
	"testing"
)

// numbers are what a mutation sets a field to.
var numbers = []int64{0, 1, 2, 3, 63, 64, 128, 255, 256, 300, 512, 1024, 2048, 4096, 8192,
	1 << 31, 1 << 40, math.MaxInt64, math.MaxInt64 - 255, -1, -256, math.MinInt64}

// mutate changes one thing about s, as four bytes say.
func mutate(s *Schedule, kind, where, which, value byte) {
	number := numbers[int(value)%len(numbers)]
	if mutateSchedule(s, kind, number) || len(s.Batches) == 0 {
		return
	}
	i := int(where) % len(s.Batches)
	b := &s.Batches[i]
	switch kind % 32 {
	case 8:
		s.Batches = append(s.Batches[:i:i], s.Batches[i+1:]...)
	case 9:
		k := int(which) % len(s.Batches)
		s.Batches[i], s.Batches[k] = s.Batches[k], s.Batches[i]
	case 10:
		s.Batches = append(s.Batches, s.Batches[i])
	case 11:
		b.Rank = int(number)
	case 12:
		b.Queue = Queue(value)
	case 13:
		b.Signal = number
	default:
		if kind%32 < 20 {
			mutateWait(b, kind, which, number)
		} else if len(b.Steps) > 0 {
			mutateStep(&b.Steps[int(which)%len(b.Steps)], kind, value, number)
		}
	}
}

func mutateSchedule(s *Schedule, kind byte, number int64) bool {
	switch kind % 32 {
	case 0:
		s.World = int(number)
	case 1:
		s.Elements = number
	case 2:
		s.Wire = Wire(number)
	case 3:
		s.ZeroRanks = uint64(number)
	case 4:
		s.Half = int(number)
	case 5:
		s.HalfBytes = number
	case 6:
		s.Rounds = int(number)
	case 7:
		if len(s.Signals) > 0 {
			s.Signals[0][Compute] = number
		}
	default:
		return false
	}
	return true
}

func mutateWait(b *Batch, kind, which byte, number int64) {
	if len(b.Waits) == 0 {
		return
	}
	i := int(which) % len(b.Waits)
	switch w := &b.Waits[i]; kind % 32 {
	case 14:
		b.Waits = append(b.Waits[:i:i], b.Waits[i+1:]...)
	case 15:
		w.Rank = int(number)
	case 16:
		w.Queue = Queue(number)
	case 17:
		w.Value = number
	}
}

func mutateStep(st *Step, kind, value byte, number int64) {
	region := &st.Dst
	if len(st.Srcs) > 0 && value >= 128 {
		region = &st.Srcs[int(value)%len(st.Srcs)]
	} else if st.Publish != nil && value >= 64 {
		region = st.Publish
	}
	switch kind % 32 {
	case 20:
		st.Op = Op(number)
	case 21:
		st.Count = number
	case 22, 23, 24:
		region.Offset = number
	case 25:
		region.Rank = int(number)
	case 26:
		region.Space = Space(number)
	case 27:
		st.Publish = &Region{Staging, region.Rank, number}
	case 28:
		st.Publish = nil
	case 29:
		st.Srcs = append(st.Srcs, st.Dst)
	case 30:
		st.Srcs = nil
	}
}

// fuzzed builds a sequence of three reductions, the second one mutated.
func fuzzed(t testing.TB, algorithm, wire, zero, elements byte, mutations []byte) []*Schedule {
	p := Params{World: 3, Elements: 1 + 8*int64(elements), Wire: Wire(wire % 3), HalfBytes: 4096,
		ChunkBytes: 1024, ZeroRanks: uint64(zero % 8), TransferQueue: uint64(zero / 8 % 8)}
	var c chain
	fullRounds(t, &c, p.World, p.HalfBytes)
	s := clone(c.add(t, Algorithms()[algorithm%4], p))
	c.seq[1] = s
	fullRounds(t, &c, p.World, p.HalfBytes)
	for ; len(mutations) >= 4; mutations = mutations[4:] {
		mutate(s, mutations[0], mutations[1], mutations[2], mutations[3])
	}
	return c.seq
}

// FuzzCheck mutates schedules. Check must never panic, and what it accepts must
// compute the documented sums in any order.
func FuzzCheck(f *testing.F) {
	f.Add(byte(0), byte(0), byte(0), byte(40), []byte{14, 2, 0, 0})
	f.Add(byte(1), byte(1), byte(0x38), byte(200), []byte{17, 9, 1, 1, 8, 3, 0, 0})
	f.Add(byte(2), byte(2), byte(2), byte(100), []byte{22, 4, 0, 130, 26, 1, 0, 2})
	f.Add(byte(3), byte(1), byte(1), byte(150), []byte{9, 3, 4, 0, 21, 5, 0, 17})
	f.Add(byte('Y'), byte(12), byte('Y'), byte(10), []byte{7, 0, 0, 17, 13, 48, 48, 39}) // signals the largest value
	f.Fuzz(func(t *testing.T, algorithm, wire, zero, elements byte, mutations []byte) {
		if len(mutations) > 32 {
			return
		}
		seq := fuzzed(t, algorithm, wire, zero, elements, mutations)
		if Check(seq) != nil || seq[1].Elements > 1<<16 {
			return
		}
		for seed := range uint64(3) {
			if err := simulate(seq, seeded(1), seeded(seed)); err != nil {
				t.Errorf("accepted: %v", err)
			}
		}
	})
}

func TestMutatedSchedulesAreRefusedOrHarmless(t *testing.T) {
	rng := seeded(7)
	for range 1500 {
		mutations := make([]byte, 4*(1+rng.IntN(2)))
		for i := range mutations {
			mutations[i] = byte(rng.Uint32())
		}
		seq := fuzzed(t, byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()), mutations)
		if Check(seq) != nil || seq[1].Elements > 1<<16 {
			continue
		}
		if err := simulate(seq, seeded(1), seeded(rng.Uint64())); err != nil {
			t.Fatalf("accepted after mutations %v: %v", mutations, err)
		}
	}
}
