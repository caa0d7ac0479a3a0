package allreduce

import "math"

const (
	// chunkCost is what a chunk costs beside its bytes, a signal, a wait and two
	// launches, in bytes that the link moves meanwhile: 15 us at 34 GB/s each way
	// on two H200.
	chunkCost             = 512 << 10
	leastChunk, mostChunk = 256 << 10, 4 << 20
)

// PipelineChunk is the chunk size, in bytes on the wire, for a tensor of so many
// bytes on the wire. A pipeline of N chunks takes N+1 turns of a chunk's time and
// cost: least for the square root of size times cost.
func PipelineChunk(encoded int64) int64 {
	best := int64(math.Sqrt(float64(encoded)*chunkCost)) >> 10 << 10
	return max(leastChunk, min(mostChunk, best))
}

// Pipeline builds the schedule that moves a large tensor in chunks, so that a
// rank writes its own slice out while it reads the peers'. A round fills one
// staging half with as many chunk slots as fit; ChunkBytes sets their size, and
// without it one chunk fills the half.
//
// A rank with a transfer queue streams its chunks out on it: from the tensor
// with an F32 wire (Pack there is a plain copy), else from Scratch, where the
// compute queue packs a whole round ahead. A rank without one packs chunk c+1
// beside reducing chunk c, in one batch.
//
// Rounds overlap: chunks of round j go out while round j-1 is being read. What
// SingleShot gets from completing rounds in turn is therefore signalled here:
// a rank's compute timeline says when it has read round j, and whoever writes
// round j+2 waits for that.
func Pipeline(p Params) (*Schedule, error) {
	b, err := newBuilder(AlgorithmPipeline, p)
	if err != nil {
		return nil, err
	}
	size, err := b.chunk(b.HalfBytes)
	if err != nil {
		return nil, err
	}
	b.order = newOrdering(b.World)
	x := &pipeline{
		builder: b,
		chunks:  split(b.Elements, size),
		stride:  b.Wire.stride(size),
		out:     make([][]Point, b.World),
		read:    make([][]Point, b.World),
	}
	x.slots = int(b.HalfBytes / x.stride)
	b.s.Rounds = (len(x.chunks) + x.slots - 1) / x.slots
	x.build()
	return b.s, nil
}

type pipeline struct {
	*builder
	chunks []span
	stride int64 // bytes between chunk slots
	slots  int   // chunks of a round
	// out[rank][c] is reached when the rank's chunk c is in its staging.
	out [][]Point
	// read[rank][j+1] is reached when the rank has read round j, as far as
	// releases says; read[rank][0] when it has begun, that is when it has read
	// all earlier reductions.
	read [][]Point
}

// build submits everything: a round's chunks ahead of the reduces of the round
// before it, and each wait behind what signals it.
func (x *pipeline) build() {
	x.sweep(x.begin)
	for c := range x.chunks {
		if round := c / x.slots; c%x.slots == 0 && round+1 < x.s.Rounds {
			x.sweep(func(r int) {
				if x.streams(r) {
					x.stream(r, round+1)
				}
			})
		}
		x.sweep(func(r int) { x.turn(r, c) })
	}
}

// streams reports whether rank r writes its chunks from its transfer queue.
func (x *pipeline) streams(r int) bool {
	return x.TransferQueue>>uint(r)&1 != 0 && !x.Zero(r)
}

// begin signals that rank r has begun, with its first chunks where it has any.
func (x *pipeline) begin(r int) {
	switch {
	case x.streams(r):
		x.stream(r, 0)
	case x.Zero(r):
		x.read[r] = append(x.read[r], x.submit(Batch{Rank: r}, true))
	default:
		x.pack(r, 0)
		x.read[r] = append(x.read[r], x.out[r][0])
	}
}

// slot is where chunk c lies in Staging or Scratch of rank r.
func (x *pipeline) slot(space Space, r, c int) Region {
	return Region{space, r, x.base(c/x.slots) + int64(c%x.slots)*x.stride}
}

// tensor is where chunk c lies in the tensor of rank r.
func (x *pipeline) tensor(r, c int) Region { return Region{Tensor, r, x.chunks[c].first} }

// overwrite lists the waits before rank r writes round j to its staging.
func (x *pipeline) overwrite(r, j int) []Wait {
	if j == 0 {
		return nil // completing the reduction before this one was enough
	}
	var waits []Wait
	for peer := range x.World {
		inStep := !x.streams(r) && !x.streams(peer) && !x.Zero(peer) && x.slots > 1
		if peer == r || inStep {
			// Where both pack on their compute queues, a chunk that r has
			// reduced was packed behind the peer's reading of the chunk
			// two before it, or behind its beginning.
			continue
		}
		// WAR: the peer has read this half of r's staging, as far as it is
		// used again, two rounds ago.
		waits = append(waits, Wait{x.read[peer][j-1], WAR})
	}
	return waits
}

// pack writes chunk c of rank r to its staging on the compute queue.
func (x *pipeline) pack(r, c int) {
	b := Batch{Rank: r}
	x.addPack(&b, c)
	x.out[r] = append(x.out[r], x.submit(b, true))
}

// addPack lets a batch write its rank's chunk c to staging.
func (x *pipeline) addPack(b *Batch, c int) {
	if c%x.slots == 0 {
		b.Waits = append(b.Waits, x.overwrite(b.Rank, c/x.slots)...)
	}
	b.Steps = append(b.Steps, Step{
		Op:    Pack,
		Count: x.chunks[c].count,
		Dst:   x.slot(Staging, b.Rank, c),
		Srcs:  []Region{x.tensor(b.Rank, c)},
	})
}

// stream writes the chunks of round j of rank r to its staging on the transfer
// queue, each with a signal of its own.
func (x *pipeline) stream(r, j int) {
	waits := x.overwrite(r, j)
	if j == 0 || x.Wire != F32 {
		packed := x.packAhead(r, j)
		if j == 0 {
			x.read[r] = append(x.read[r], packed)
		}
		// RAW: the tensor, or with a 16-bit wire the scratch, is written.
		waits = append(waits, Wait{packed, RAW})
	}
	first, end := x.roundChunks(j)
	for c := first; c < end; c++ {
		step := Step{Op: Pack, Count: x.chunks[c].count,
			Dst: x.slot(Staging, r, c), Srcs: []Region{x.tensor(r, c)}}
		if x.Wire != F32 {
			step.Op = Copy
			step.Srcs = []Region{x.slot(Scratch, r, c)}
		}
		b := Batch{Rank: r, Queue: Transfer, Waits: waits, Steps: []Step{step}}
		x.out[r] = append(x.out[r], x.submit(b, true))
		waits = nil // the queue is in order
	}
}

// packAhead encodes round j of rank r into scratch on the compute queue, with
// an F32 wire nothing, and signals. It is device-local work and short.
func (x *pipeline) packAhead(r, j int) Point {
	b := Batch{Rank: r}
	if x.Wire == F32 {
		return x.submit(b, true)
	}
	first, end := x.roundChunks(j)
	for c := first; c < end; c++ {
		b.Steps = append(b.Steps, Step{
			Op:    Pack,
			Count: x.chunks[c].count,
			Dst:   x.slot(Scratch, r, c),
			Srcs:  []Region{x.tensor(r, c)},
		})
	}
	if j >= 2 {
		// WAR: the transfer queue has copied what was in these slots of the
		// scratch two rounds ago.
		b.Waits = []Wait{{x.out[r][end-1-2*x.slots], WAR}}
	}
	return x.submit(b, true)
}

// roundChunks is the range first..end-1 of the chunks of round j.
func (x *pipeline) roundChunks(j int) (first, end int) {
	return j * x.slots, min((j+1)*x.slots, len(x.chunks))
}

// turn sums chunk c on rank r as soon as all peers' chunks are out, and beside
// it, in the same batch, writes the rank's next chunk where its compute queue
// does that: the steps of a batch run side by side, one in each direction.
func (x *pipeline) turn(r, c int) {
	b := Batch{Rank: r}
	packs := c+1 < len(x.chunks) && !x.streams(r) && !x.Zero(r)
	if packs {
		x.addPack(&b, c+1)
	}
	b.Steps = append(b.Steps, x.reduceAll(r, x.chunks[c], x.slot(Staging, r, c).Offset))
	b.Waits = append(b.Waits, x.landed(r, c)...)
	released := x.releases(c)
	p := x.submit(b, packs || released)
	if packs {
		x.out[r] = append(x.out[r], p)
	}
	if released {
		x.read[r] = append(x.read[r], p)
	}
}

// landed lists the waits before rank r sums chunk c.
func (x *pipeline) landed(r, c int) []Wait {
	var waits []Wait
	last := c == len(x.chunks)-1
	for peer := range x.World {
		if peer != r && !x.Zero(peer) {
			// RAW: the peer's chunk is in its staging.
			waits = append(waits, Wait{x.out[peer][c], RAW})
		}
	}
	if x.streams(r) && (last || x.Wire == F32) {
		// WAR: with an F32 wire the transfer queue copies the very
		// elements that the sum replaces. With any wire the queue is idle
		// when the reduction ends.
		waits = append(waits, Wait{x.out[r][c], WAR})
	}
	if last {
		waits = append(waits, x.complete(r)...)
	}
	return waits
}

// releases reports whether a rank signals that it has reduced chunk c: the last
// chunk of its round whose slot is used again in this reduction, or in the last
// round but one the last chunk, for the next reduction's sake.
func (x *pipeline) releases(c int) bool {
	first, end := x.roundChunks(c/x.slots + 2)
	switch {
	case first < len(x.chunks):
		return c == end-1-2*x.slots
	case first-x.slots < len(x.chunks):
		return (c+1)%x.slots == 0
	}
	return false
}

// complete lists the waits that let the reduction after this one overwrite
// rank r's staging without any: see the package's comment.
func (x *pipeline) complete(r int) []Wait {
	var waits []Wait
	for peer := range x.World {
		switch {
		case peer == r:
		case !x.Zero(r):
			// WAR: the peer has read the rounds before the last one.
			waits = append(waits, Wait{x.read[peer][x.s.Rounds-1], WAR})
		case x.mustHaveBegun():
			// WAR: the peer has read what r wrote in earlier reductions.
			waits = append(waits, Wait{x.read[peer][0], WAR})
		}
	}
	return waits
}
