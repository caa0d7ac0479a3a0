package allreduce

// TensorAt is a rank's tensor from an element on.
func TensorAt(rank int, element int64) Region {
	return Region{Space: Tensor, Rank: rank, Offset: element}
}

// StagingAt is a rank's staging from a byte on.
func StagingAt(rank int, offset int64) Region {
	return Region{Space: Staging, Rank: rank, Offset: offset}
}

// ScratchAt is a rank's scratch memory from a byte on.
func ScratchAt(rank int, offset int64) Region {
	return Region{Space: Scratch, Rank: rank, Offset: offset}
}

// ByHand is a schedule that sums nothing, for measuring and for tests of single
// steps: one batch for each rank for which steps returns any, and no wait.
func ByHand(world int, wire Wire, halfBytes int64, steps func(rank int) []Step) *Schedule {
	s := &Schedule{Algorithm: "by hand", World: world, Wire: wire, HalfBytes: halfBytes, Signals: make([][2]int64, world)}
	for r := range world {
		if list := steps(r); len(list) > 0 {
			s.Batches = append(s.Batches, Batch{Rank: r, Steps: list})
		}
	}
	return s
}

// Only lets one rank do steps in ByHand, if there are any.
func Only(rank int, steps ...Step) func(int) []Step {
	return func(r int) []Step {
		if r != rank {
			return nil
		}
		return steps
	}
}

// Chain is so many batches that do next to nothing, each of which waits for the
// former one, round the ranks: it takes as many signals from rank to rank.
func Chain(world, batches int, halfBytes int64) *Schedule {
	s := ByHand(world, F32, halfBytes, Only(0))
	var before Batch
	for i := range batches {
		rank := i % world
		s.Signals[rank][Compute]++
		b := Batch{Rank: rank, Signal: s.Signals[rank][Compute],
			Steps: []Step{{Op: Pack, Count: 64, Dst: StagingAt(rank, 0), Srcs: []Region{TensorAt(rank, 0)}}}}
		if i > 0 {
			b.Waits = []Wait{{Point: Point{Rank: before.Rank, Value: before.Signal}, Hazard: RAW}}
		}
		s.Batches, before = append(s.Batches, b), b
	}
	return s
}
