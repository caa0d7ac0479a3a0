package allreduce

// TwoShot builds the schedule in which rank c reduces slice c of all ranks and
// publishes the sum, and then every rank reads the other slices' sums: two
// hops, and O(n) bytes in all where SingleShot moves O(n^2). A tensor whose
// slices do not fit a staging half (or ChunkBytes) is streamed through in
// rounds. It fails when p is invalid or a half holds less than World slices of
// F16Block elements while more than one round is needed.
func TwoShot(p Params) (*Schedule, error) {
	return sliced(AlgorithmTwoShot, p, func(r slicedRound) {
		x := &twoShotRound{slicedRound: r, packed: make([]Point, r.World), summed: make([]Point, r.World)}
		x.sweep(x.pack)
		x.sweep(x.reduce)
		x.sweep(x.collect)
	})
}

// twoShotRound moves one round's slices through one half. Slice c has slot c in
// every rank's staging: the rank's operand, or on rank c the sum.
type twoShotRound struct {
	slicedRound
	packed []Point // by rank
	summed []Point // by rank, those that own a slice
}

func (x *twoShotRound) slot(space Space, rank, slice int) Region {
	return Region{space, rank, x.base + int64(slice)*x.stride}
}

func (x *twoShotRound) owns(rank int) bool { return x.slices[rank].count > 0 }

// pack writes rank r's part of the slices that others own to its staging. Its
// part of its own slice stays in the tensor; with a 16-bit wire it is rounded
// there, by a pack into scratch that costs no traffic between ranks.
func (x *twoShotRound) pack(r int) {
	b := Batch{Rank: r}
	shared := false
	for c, slice := range x.slices {
		dst := x.slot(Staging, r, c)
		if c == r {
			dst.Space = Scratch
		}
		if x.Zero(r) || slice.count == 0 || c == r && x.Wire == F32 {
			continue
		}
		shared = shared || c != r
		b.Steps = append(b.Steps, Step{Op: Pack, Count: slice.count, Dst: dst,
			Srcs: []Region{x.operand(r, slice.first)}})
	}
	// A zero rank that owns a slice says so with its sum that it has begun.
	x.packed[r] = x.submit(b, shared || x.Zero(r) && !x.owns(r))
}

// reduce sums slice r on rank r and publishes it.
func (x *twoShotRound) reduce(r int) {
	if !x.owns(r) {
		return
	}
	step := x.reduceAll(r, x.slices[r], x.slot(Staging, r, r).Offset)
	sum := x.slot(Staging, r, r)
	step.Publish = &sum
	b := Batch{Rank: r, Steps: []Step{step}}
	for peer := range x.World {
		switch {
		case peer == r:
		case !x.Zero(peer):
			// RAW: the peer's part of slice r is in its staging.
			b.Waits = append(b.Waits, Wait{x.packed[peer], RAW})
		case r == 0 && !x.owns(peer):
			// WAR: the peer has read the other half. It has nothing to
			// publish; all others wait for slice 0, and so for this.
			b.Waits = append(b.Waits, Wait{x.packed[peer], WAR})
		}
	}
	x.summed[r] = x.submit(b, true)
}

// collect reads the sums of the other slices into rank r's tensor.
func (x *twoShotRound) collect(r int) {
	b := Batch{Rank: r}
	for c, slice := range x.slices {
		if c == r || slice.count == 0 {
			continue
		}
		b.Steps = append(b.Steps, Step{
			Op:    Unpack,
			Count: slice.count,
			Dst:   Region{Tensor, r, slice.first},
			Srcs:  []Region{x.slot(Staging, c, c)},
		})
		// RAW: the sum is in its owner's staging.
		b.Waits = append(b.Waits, Wait{x.summed[c], RAW})
	}
	x.submit(b, false)
}
