package allreduce

import "fmt"

// Names of the algorithms, as in Schedule.Algorithm.
const (
	AlgorithmSingleShot = "singleshot"
	AlgorithmPipeline   = "pipeline"
	AlgorithmTwoShot    = "twoshot"
	AlgorithmRing       = "ring"
	AlgorithmRelay      = "relay"
)

// Algorithms lists the names of those that reduce any number of elements over
// any wire, simplest first. Build knows AlgorithmRelay as well.
func Algorithms() []string {
	return []string{AlgorithmSingleShot, AlgorithmPipeline, AlgorithmTwoShot, AlgorithmRing}
}

// Build runs the builder of the named algorithm.
func Build(algorithm string, p Params) (*Schedule, error) {
	switch algorithm {
	case AlgorithmSingleShot:
		return SingleShot(p)
	case AlgorithmPipeline:
		return Pipeline(p)
	case AlgorithmTwoShot:
		return TwoShot(p)
	case AlgorithmRing:
		return Ring(p)
	case AlgorithmRelay:
		return Relay(p)
	}
	return nil, fmt.Errorf("allreduce: unknown algorithm %q", algorithm)
}

// builder collects the batches of one schedule in submission order.
type builder struct {
	Params
	s          *Schedule
	descending bool      // direction of the next sweep
	order      *ordering // nil: no wait is ever implied by another
}

func newBuilder(algorithm string, p Params) (*builder, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	return &builder{Params: p, s: &Schedule{
		Algorithm: algorithm,
		World:     p.World,
		Elements:  p.Elements,
		Wire:      p.Wire,
		ZeroRanks: p.ZeroRanks,
		Half:      p.Half,
		HalfBytes: p.HalfBytes,
		Signals:   make([][2]int64, p.World),
	}}, nil
}

// sweep lets every rank submit, forth and back in turn: the last rank of one
// sweep is the first of the next, so that an executor can hand its two batches
// to the queue in one submission.
func (b *builder) sweep(visit func(rank int)) {
	before := len(b.s.Batches)
	for i := range b.World {
		if b.descending {
			i = b.World - 1 - i
		}
		visit(i)
	}
	if len(b.s.Batches) > before {
		b.descending = !b.descending
	}
}

// submit appends a batch, with those of its waits that are not implied already,
// and, if signal is set, lets it signal the next value of its timeline, which
// is returned. A batch that neither does anything nor signals is left out.
func (b *builder) submit(batch Batch, signal bool) Point {
	if len(batch.Steps) == 0 && !signal {
		return Point{}
	}
	if b.order != nil {
		batch.Waits = b.order.needed(batch)
	}
	if signal {
		last := &b.s.Signals[batch.Rank][batch.Queue]
		*last++
		batch.Signal = *last
	}
	b.s.Batches = append(b.s.Batches, batch)
	p := Point{Rank: batch.Rank, Queue: batch.Queue, Value: batch.Signal}
	if b.order != nil {
		b.order.submitted(batch, p)
	}
	return p
}

// base is the byte at which the half that a round uses begins. Rounds are
// counted from 0 in each reduction.
func (b *builder) base(round int) int64 {
	return int64((b.Half+round)%2) * b.HalfBytes
}

// mustHaveBegun reports whether a zero rank has to know, when it completes the
// reduction, that its peers have begun it. It wrote its staging in earlier
// reductions only, last of all in the round just before this one; that half is
// the next reduction's first after an odd number of rounds. After an even number
// it is the second, which waits for the peers anyway.
func (b *builder) mustHaveBegun() bool { return b.s.Rounds%2 == 1 }

// operand is what rank r contributes to the elements from first on: its own
// tensor, or +0.0.
func (b *builder) operand(r int, first int64) Region {
	if b.Zero(r) {
		return Region{Space: Zero, Rank: r}
	}
	return Region{Space: Tensor, Rank: r, Offset: first}
}

// span is a run of a tensor's elements.
type span struct{ first, count int64 }

// split cuts elements into spans of at most size.
func split(elements, size int64) []span {
	var spans []span
	for first := int64(0); first < elements; first += size {
		spans = append(spans, span{first, min(size, elements-first)})
	}
	return spans
}

// slices cuts s into n slices, each a multiple of F16Block long up to the last
// one that holds anything; the ones behind that are empty.
func (s span) slices(n int) []span {
	size := roundUp((s.count+int64(n)-1)/int64(n), F16Block)
	spans := make([]span, n)
	for i := range spans {
		at := min(int64(i)*size, s.count)
		spans[i] = span{s.first + at, min(size, s.count-at)}
	}
	return spans
}

// roundUp gives the next multiple of unit that is not below v.
func roundUp(v, unit int64) int64 { return (v + unit - 1) / unit * unit }

// stride is the distance of slots that hold count elements each.
func (w Wire) stride(count int64) int64 { return roundUp(w.Bytes(count), OffsetAlign) }

// chunk is how many elements one step may move: all of them, or else the
// largest multiple of F16Block that a slot of slotBytes holds and ChunkBytes
// allows. slotBytes is a multiple of OffsetAlign.
func (b *builder) chunk(slotBytes int64) (int64, error) {
	limit := slotBytes
	if b.ChunkBytes > 0 {
		limit = min(limit, b.ChunkBytes)
	}
	if b.Wire.Bytes(b.Elements) <= limit {
		return b.Elements, nil
	}
	// Wire.Bytes is linear over whole blocks.
	if blocks := limit / b.Wire.Bytes(F16Block); blocks > 0 {
		return blocks * F16Block, nil
	}
	return 0, fmt.Errorf("allreduce: %s: %d bytes a step cannot hold %d elements of %s",
		b.s.Algorithm, limit, F16Block, b.Wire)
}
