package allreduce

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Simulator executes schedules on plain slices, to the bit as devices do. Its
// memory persists over reductions, as that of devices does.
type Simulator struct {
	world   int
	tensor  [][]float32 // what Tensor is during a reduction
	staging [][]byte
	scratch [][]byte
}

// NewSimulator makes world ranks with two staging halves of halfBytes each.
func NewSimulator(world int, halfBytes int64) *Simulator {
	m := &Simulator{
		world:   world,
		tensor:  make([][]float32, world),
		staging: make([][]byte, world),
		scratch: make([][]byte, world),
	}
	for r := range world {
		m.staging[r] = make([]byte, 2*halfBytes)
		m.scratch[r] = make([]byte, 2*halfBytes)
	}
	return m
}

// work is what a queue of the simulated machine runs next: a batch of a
// reduction, or the host's graph before or after it.
type work struct {
	reduction int
	batch     *Batch // nil: the graph
	after     bool
}

// machine is one run over a sequence of reductions.
type machine struct {
	*Simulator
	seq      []*Schedule
	operands [][][]float32
	queues   [][]work
	timeline []int64   // by queue
	base     [][]int64 // timeline values when each reduction begins
}

// Run reduces operands[i][rank] in place for each schedule seq[i]. The host's
// graph puts the operands in place on a rank's compute queue, and takes the sum
// away on it. With a nil rng batches run in submission order. Otherwise any
// order that the queues and the waits allow may come up, over all reductions,
// so that a missing wait shows as a wrong sum; some queues then run far ahead
// of others. Run fails when no queue can go on. Schedules are not checked.
func (m *Simulator) Run(seq []*Schedule, operands [][][]float32, rng *rand.Rand) error {
	x := &machine{Simulator: m, seq: seq, operands: operands,
		queues: make([][]work, 2*m.world), timeline: make([]int64, 2*m.world)}
	var order []int // queues in submission order
	submit := func(queue int, w work) {
		x.queues[queue] = append(x.queues[queue], w)
		order = append(order, queue)
	}
	base := make([]int64, 2*m.world)
	for i, s := range seq {
		x.base = append(x.base, append([]int64(nil), base...))
		for r := range m.world {
			submit(line(r, Compute), work{reduction: i})
		}
		for b := range s.Batches {
			batch := &s.Batches[b]
			submit(line(batch.Rank, batch.Queue), work{reduction: i, batch: batch})
		}
		for r := range m.world {
			submit(line(r, Compute), work{reduction: i, after: true})
			for q, values := range s.Signals[r] {
				base[line(r, Queue(q))] += values
			}
		}
	}
	if rng == nil {
		return x.runInOrder(order)
	}
	return x.runAnyhow(len(order), rng)
}

func (x *machine) runInOrder(order []int) error {
	for _, q := range order {
		if !x.ready(q) {
			return fmt.Errorf("allreduce: queue %d of rank %d waits for a later batch", q%2, q/2)
		}
		x.next(q, nil)
	}
	return nil
}

// runAnyhow always runs the ready queue that stands first in an order of
// preference, which it shuffles now and then.
func (x *machine) runAnyhow(left int, rng *rand.Rand) error {
	prefer := rng.Perm(len(x.queues))
	for ; left > 0; left-- {
		if rng.IntN(2*len(x.queues)) == 0 {
			prefer = rng.Perm(len(x.queues))
		}
		ran := false
		for _, q := range prefer {
			if ran = x.ready(q); ran {
				x.next(q, rng)
				break
			}
		}
		if !ran {
			return fmt.Errorf("allreduce: dead-lock with %d batches left", left)
		}
	}
	return nil
}

// ready reports whether a queue's next work may begin.
func (x *machine) ready(queue int) bool {
	if len(x.queues[queue]) == 0 {
		return false
	}
	w := x.queues[queue][0]
	if w.batch == nil {
		return true
	}
	for _, wait := range w.batch.Waits {
		at := line(wait.Rank, wait.Queue)
		if x.timeline[at] < x.base[w.reduction][at]+wait.Value {
			return false
		}
	}
	return true
}

// next runs a queue's next work, with an rng the steps of a batch in any order.
func (x *machine) next(queue int, rng *rand.Rand) {
	w := x.queues[queue][0]
	x.queues[queue] = x.queues[queue][1:]
	if w.batch == nil {
		x.graph(queue/2, w)
		return
	}
	order := make([]int, len(w.batch.Steps))
	for i := range order {
		order[i] = i
	}
	if rng != nil {
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	for _, i := range order {
		x.step(x.seq[w.reduction].Wire, &w.batch.Steps[i])
	}
	if w.batch.Signal > 0 {
		x.timeline[queue] = x.base[w.reduction][queue] + w.batch.Signal
	}
}

// graph puts a rank's operand into its tensor, or takes the sum from there and
// leaves NaN behind.
func (x *machine) graph(rank int, w work) {
	v := x.operands[w.reduction][rank]
	if !w.after {
		x.tensor[rank] = append(x.tensor[rank][:0], v...)
		return
	}
	copy(v, x.tensor[rank])
	for i := range x.tensor[rank] {
		x.tensor[rank][i] = float32(math.NaN())
	}
}

// step executes one step of a rank.
func (m *Simulator) step(wire Wire, st *Step) {
	size := wire.Bytes(st.Count)
	switch st.Op {
	case Pack:
		v := m.elements(st.Srcs[0], st.Count)
		dst := m.bytes(st.Dst, size)
		wire.Encode(dst, v)
		wire.Decode(v, dst) // rounds in place
	case Copy:
		copy(m.bytes(st.Dst, size), m.bytes(st.Srcs[0], size))
	case Unpack:
		wire.Decode(m.elements(st.Dst, st.Count), m.bytes(st.Srcs[0], size))
	case Reduce:
		sum := m.sum(wire, st)
		if st.Publish != nil {
			dst := m.bytes(*st.Publish, size)
			wire.Encode(dst, sum)
			wire.Decode(sum, dst)
		}
		copy(m.elements(st.Dst, st.Count), sum)
	}
}

// sum adds the sources of a Reduce step.
func (m *Simulator) sum(wire Wire, st *Step) []float32 {
	size := wire.Bytes(st.Count)
	operands := make([][]float32, len(st.Srcs))
	for i, src := range st.Srcs {
		operands[i] = make([]float32, st.Count)
		switch src.Space {
		case Tensor:
			copy(operands[i], m.elements(src, st.Count))
		case Staging, Scratch:
			wire.Decode(operands[i], m.bytes(src, size))
		}
	}
	return Butterfly(operands, func(a, b []float32) []float32 {
		for i := range a {
			a[i] += b[i]
		}
		return a
	})
}

// elements is a region of a Tensor. A rank whose graph has not run yet, or has
// gone on to a smaller tensor, has memory there all the same.
func (m *Simulator) elements(r Region, count int64) []float32 {
	for int64(len(m.tensor[r.Rank])) < r.Offset+count {
		m.tensor[r.Rank] = append(m.tensor[r.Rank], float32(math.NaN()))
	}
	return m.tensor[r.Rank][r.Offset : r.Offset+count]
}

// bytes is a region of Staging or Scratch.
func (m *Simulator) bytes(r Region, size int64) []byte {
	if r.Space == Scratch {
		return m.scratch[r.Rank][r.Offset : r.Offset+size]
	}
	return m.staging[r.Rank][r.Offset : r.Offset+size]
}
