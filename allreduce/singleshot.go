package allreduce

// SingleShot builds the schedule in which every rank gathers its own tensor
// into its staging and then reads and sums all the others: one hop. A tensor
// larger than a staging half (or than ChunkBytes) is streamed through in chunks,
// one round each. It fails when p is invalid or a half holds less than one
// block of F16Block elements.
func SingleShot(p Params) (*Schedule, error) {
	b, err := newBuilder(AlgorithmSingleShot, p)
	if err != nil {
		return nil, err
	}
	size, err := b.chunk(b.HalfBytes)
	if err != nil {
		return nil, err
	}
	chunks := split(b.Elements, size)
	b.s.Rounds = len(chunks)
	b.order = newOrdering(b.World)
	begun := make([]Point, b.World)
	for round, chunk := range chunks {
		b.singleShotRound(chunk, round, begun)
	}
	return b.s, nil
}

// singleShotRound moves one chunk through one half. All gathers are submitted
// before any reduce, so that no queue is ever handed a wait whose signal is not
// submitted yet. begun keeps each rank's first signal.
func (b *builder) singleShotRound(chunk span, round int, begun []Point) {
	base, last := b.base(round), round == b.s.Rounds-1
	gathered := make([]Point, b.World)
	b.sweep(func(r int) { gathered[r] = b.gather(r, chunk, base) })
	if round == 0 {
		copy(begun, gathered)
	}
	b.sweep(func(r int) {
		reduce := Batch{Rank: r, Steps: []Step{b.reduceAll(r, chunk, base)}}
		for peer, point := range gathered {
			switch {
			case peer == r:
			case !b.Zero(peer):
				// RAW: the peer's chunk is in its staging.
				reduce.Waits = append(reduce.Waits, Wait{point, RAW})
			case !b.Zero(r):
				// WAR: there is nothing to read, yet the signal says
				// that the peer has read this rank's other half, which
				// the next round overwrites.
				reduce.Waits = append(reduce.Waits, Wait{point, WAR})
			case last && b.mustHaveBegun():
				// WAR: the peer has read what this rank wrote in
				// earlier reductions.
				reduce.Waits = append(reduce.Waits, Wait{begun[peer], WAR})
			}
		}
		b.submit(reduce, false)
	})
}

// gather packs rank r's chunk into its staging at byte offset at and signals.
// A zero rank only signals.
func (b *builder) gather(r int, chunk span, at int64) Point {
	batch := Batch{Rank: r}
	if !b.Zero(r) {
		batch.Steps = []Step{{
			Op:    Pack,
			Count: chunk.count,
			Dst:   Region{Space: Staging, Rank: r, Offset: at},
			Srcs:  []Region{b.operand(r, chunk.first)},
		}}
	}
	return b.submit(batch, true)
}

// reduceAll sums all ranks' chunk on rank r: its own operand from its tensor,
// the peers' from byte offset at of their staging, zero ranks as +0.0.
func (b *builder) reduceAll(r int, chunk span, at int64) Step {
	srcs := make([]Region, b.World)
	for peer := range srcs {
		srcs[peer] = b.operand(peer, chunk.first)
		if peer != r && !b.Zero(peer) {
			srcs[peer] = Region{Space: Staging, Rank: peer, Offset: at}
		}
	}
	return Step{
		Op:    Reduce,
		Count: chunk.count,
		Dst:   Region{Space: Tensor, Rank: r, Offset: chunk.first},
		Srcs:  srcs,
	}
}
