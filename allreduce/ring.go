package allreduce

// Ring builds the schedule that reduces and distributes slices along the ring
// of ranks, each rank reading the staging of the one before it alone: World-1
// hops of reduce-scatter, in which slice c gathers the sum from rank c on round
// to rank c-1, and World-1 hops of all-gather that carry the sums on. With a
// 16-bit wire a partial sum is rounded at every hop. A tensor whose slices do
// not fit a staging half (or ChunkBytes) is streamed through in rounds; it fails
// as TwoShot does.
func Ring(p Params) (*Schedule, error) {
	return sliced(AlgorithmRing, p, func(r slicedRound) {
		x := &ringRound{slicedRound: r, at: make([]Point, r.World)}
		for hop := range 2*x.World - 1 {
			x.sweep(func(rank int) { x.hop(rank, hop) })
		}
	})
}

// ringRound moves one round's slices through one half. Slice c has slot c in
// every rank's staging, first for the partial sum and then for the sum: by the
// time that a rank passes the sum on, its successor's read of the partial one
// is part of what the sum came from.
type ringRound struct {
	slicedRound
	at []Point // by slice: reached when it can be read where it is
}

// hop lets a rank take its turn: at hop 0 to start its own slice off, then to
// take one slice further each time.
func (x *ringRound) hop(rank, hop int) {
	c := ((rank-hop)%x.World + x.World) % x.World
	slice := x.slices[c]
	if slice.count == 0 {
		return
	}
	step := Step{Op: Reduce, Count: slice.count, Dst: Region{Tensor, rank, slice.first}}
	slot := Region{Staging, rank, x.base + int64(c)*x.stride}
	step.Publish = &slot
	from := slot
	from.Rank = (rank + x.World - 1) % x.World
	switch {
	case hop == 0 && x.Zero(rank): // starts from +0.0
		step.Srcs = []Region{x.operand(rank, slice.first)}
	case hop == 0:
		step = Step{Op: Pack, Count: slice.count, Dst: slot, Srcs: []Region{step.Dst}}
	case hop < x.World:
		step.Srcs = []Region{from, x.operand(rank, slice.first)}
	case hop < 2*x.World-2: // the sum, to be read by the next rank
		step.Srcs = []Region{from}
	default: // the last rank keeps the sum for itself
		step = Step{Op: Unpack, Count: slice.count, Dst: step.Dst, Srcs: []Region{from}}
	}
	b := Batch{Rank: rank, Steps: []Step{step}}
	if hop > 0 {
		// RAW: the slice is in the staging of the rank before.
		b.Waits = []Wait{{x.at[c], RAW}}
	}
	x.at[c] = x.submit(b, hop < 2*x.World-2)
}
