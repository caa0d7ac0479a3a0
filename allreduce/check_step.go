package allreduce

import (
	"fmt"
)

// step checks one step and works out what it writes.
func (c *Checker) step(b *Batch, st *Step) error {
	if err := c.form(b, st); err != nil {
		return err
	}
	values, err := c.sources(b, st)
	if err != nil {
		return err
	}
	wire := c.s.Wire
	switch st.Op {
	case Pack:
		values = c.round(values)
		if wire != F32 { // rounds its source in place
			if err := c.writeTensor(st.Srcs[0], values, st); err != nil {
				return err
			}
		}
		return c.writeEncoded(b, st.Dst, values, st)
	case Copy:
		return c.writeEncoded(b, st.Dst, values, st)
	case Reduce:
		if st.Publish != nil {
			values = c.round(values)
			if err := c.writeEncoded(b, *st.Publish, values, st); err != nil {
				return err
			}
		}
	}
	return c.writeTensor(st.Dst, values, st)
}

// form checks that a step is one that its queue can run, on spaces and ranks
// that it may touch.
func (c *Checker) form(b *Batch, st *Step) error {
	dst, most := Tensor, 1
	switch st.Op {
	case Pack, Copy:
		dst = Staging
		if st.Dst.Space == Scratch {
			dst = Scratch
		}
	case Unpack:
	case Reduce:
		most = c.world
	default:
		return fmt.Errorf("unknown operation %d", st.Op)
	}
	switch {
	case len(st.Srcs) < 1 || len(st.Srcs) > most:
		return fmt.Errorf("%v of %d sources", st.Op, len(st.Srcs))
	case st.Dst.Space != dst:
		return fmt.Errorf("%v cannot write %s", st.Op, st.Dst.Space.name())
	case st.Dst.Rank != b.Rank:
		return fmt.Errorf("%v writes memory of rank %d", st.Op, st.Dst.Rank)
	case st.Publish != nil && st.Op != Reduce:
		return fmt.Errorf("%v publishes", st.Op)
	case st.Publish != nil && st.Publish.Space != Staging && st.Publish.Space != Scratch:
		return fmt.Errorf("%v cannot publish to %s", st.Op, st.Publish.Space.name())
	case st.Publish != nil && st.Publish.Rank != b.Rank:
		return fmt.Errorf("%v publishes in memory of rank %d", st.Op, st.Publish.Rank)
	case b.Queue == Transfer && (st.Op == Reduce || st.Op != Copy && c.s.Wire != F32):
		return fmt.Errorf("a transfer queue cannot %v on a wire of %v", st.Op, c.s.Wire)
	}
	for _, src := range st.Srcs {
		if err := c.mayRead(b, st, src); err != nil {
			return err
		}
	}
	return nil
}

// mayRead checks the space and the rank of one source.
func (c *Checker) mayRead(b *Batch, st *Step, src Region) error {
	allowed := false
	switch src.Space {
	case Tensor:
		allowed = st.Op == Pack || st.Op == Reduce
	case Staging, Scratch:
		allowed = st.Op != Pack
	case Zero:
		allowed = st.Op == Reduce
	}
	switch {
	case !allowed:
		return fmt.Errorf("%v cannot read %s", st.Op, src.Space.name())
	case src.Rank < 0 || src.Rank >= c.world:
		return fmt.Errorf("%v reads memory of rank %d", st.Op, src.Rank)
	case (src.Space == Tensor || src.Space == Scratch) && src.Rank != b.Rank:
		return fmt.Errorf("%v reads %s of rank %d", st.Op, src.Space.name(), src.Rank)
	}
	return nil
}

// sources reads all sources and combines them. Every one has to hold the same
// elements of the tensor, for Unpack and Reduce those that Dst names.
func (c *Checker) sources(b *Batch, st *Step) ([]run, error) {
	first := st.Dst.Offset
	switch st.Op {
	case Pack:
		first = st.Srcs[0].Offset
	case Copy:
		return c.readEncoded(st.Srcs[0], st)
	}
	if err := c.tensorBounds(first, st.Count); err != nil {
		return nil, fmt.Errorf("%v %w", st.Op, err)
	}
	operands := make([][]run, len(st.Srcs))
	for i, src := range st.Srcs {
		var err error
		switch src.Space {
		case Zero:
			operands[i] = []run{{first, first + st.Count, c.exprs.zero()}}
		case Tensor:
			operands[i], err = c.readTensor(src, st)
		default:
			operands[i], err = c.readEncoded(src, st)
		}
		if err != nil {
			return nil, err
		}
		if at := operands[i][0].lo; at != first {
			return nil, fmt.Errorf("%v takes elements %d.. of %s for elements %d..",
				st.Op, at, c.name(src, st.Count), first)
		}
	}
	return combine(operands, first, first+st.Count, c.exprs.butterfly), nil
}

// round is values as a peer decodes them.
func (c *Checker) round(values []run) []run {
	var out []run
	for _, r := range values {
		out = appendRun(out, run{r.lo, r.hi, c.exprs.round(c.s.Wire, r.e)})
	}
	return out
}

func (c *Checker) readTensor(r Region, st *Step) ([]run, error) {
	if err := c.tensorBounds(r.Offset, st.Count); err != nil {
		return nil, fmt.Errorf("%v %w", st.Op, err)
	}
	seen, err := c.read(&c.tensor[r.Rank], r.Offset, r.Offset+st.Count, r, st)
	if err != nil {
		return nil, err
	}
	var runs []run
	for _, s := range seen {
		runs = appendRun(runs, run{s.lo, s.hi, s.value})
	}
	return runs, nil
}

func (c *Checker) writeTensor(r Region, values []run, st *Step) error {
	if err := c.tensorBounds(r.Offset, st.Count); err != nil {
		return fmt.Errorf("%v %w", st.Op, err)
	}
	m := &c.tensor[r.Rank]
	if err := c.mayWrite(*m, r.Offset, r.Offset+st.Count, r, st); err != nil {
		return err
	}
	for _, v := range values {
		m.write(segment{lo: v.lo, hi: v.hi, writer: c.now, value: v.e})
	}
	return nil
}

func (c *Checker) readEncoded(r Region, st *Step) ([]run, error) {
	if err := c.encodedBounds(r, st); err != nil {
		return nil, err
	}
	seen, err := c.read(c.memory(r), r.Offset, r.Offset+c.s.Wire.Bytes(st.Count), r, st)
	if err != nil {
		return nil, err
	}
	data := seen[0].data
	for _, s := range seen {
		if s.data != data || data.offset != r.Offset || data.count != st.Count {
			return nil, fmt.Errorf("%v reads %s, which was not written as one region",
				st.Op, c.name(r, st.Count))
		}
	}
	if int(data.reduction) != c.reductions {
		return nil, fmt.Errorf("%v reads %s, which holds data of reduction %d",
			st.Op, c.name(r, st.Count), data.reduction)
	}
	return data.values, nil
}

func (c *Checker) writeEncoded(b *Batch, r Region, values []run, st *Step) error {
	if err := c.encodedBounds(r, st); err != nil {
		return err
	}
	if r.Space == Staging {
		if err := c.turns[b.Rank].use(int(r.Offset/c.halfBytes), c.s); err != nil {
			return fmt.Errorf("%v writes %s: %w", st.Op, c.name(r, st.Count), err)
		}
	}
	m, end := c.memory(r), r.Offset+c.s.Wire.Bytes(st.Count)
	if err := c.mayWrite(*m, r.Offset, end, r, st); err != nil {
		return err
	}
	m.write(segment{lo: r.Offset, hi: end, writer: c.now, data: &encoded{
		offset: r.Offset, count: st.Count, reduction: int32(c.reductions), values: values,
	}})
	return nil
}

// use notes a write to a staging half: the first one of a reduction goes to
// Schedule.Half, and then they alternate, Rounds halves in all.
func (t *turn) use(half int, s *Schedule) error {
	switch {
	case t.rounds == 0 && half != s.Half:
		return fmt.Errorf("the first round uses half %d", s.Half)
	case t.rounds == 0 || half != t.half:
		t.rounds++
		t.half = half
	}
	if t.rounds > s.Rounds {
		return fmt.Errorf("the halves change more often than %d rounds allow", s.Rounds)
	}
	return nil
}

// tensorBounds checks elements first..first+count of a tensor.
func (c *Checker) tensorBounds(first, count int64) error {
	switch e := c.s.Elements; {
	case first < 0 || count < 1 || count > e || first > e-count:
		return fmt.Errorf("of %d elements at %d, the tensor has %d", count, first, e)
	case first%F16Block != 0 || (first+count)%F16Block != 0 && first+count != e:
		return fmt.Errorf("cuts the tensor at elements %d..%d, not at multiples of %d",
			first, first+count, F16Block)
	}
	return nil
}

// encodedBounds checks a region of Staging or Scratch.
func (c *Checker) encodedBounds(r Region, st *Step) error {
	if st.Count < 1 || st.Count > c.s.Elements {
		return fmt.Errorf("%v of %d elements, the tensor has %d", st.Op, st.Count, c.s.Elements)
	}
	size := c.s.Wire.Bytes(st.Count)
	switch {
	case r.Offset < 0 || r.Offset > 2*c.halfBytes || size > 2*c.halfBytes-r.Offset:
		return fmt.Errorf("%v: %d bytes at %d of %s are out of bounds", st.Op, size, r.Offset, r.Space.name())
	case r.Offset%OffsetAlign != 0:
		return fmt.Errorf("%v: offset %d of %s is not a multiple of %d", st.Op, r.Offset, r.Space.name(), OffsetAlign)
	case r.Offset/c.halfBytes != (r.Offset+size-1)/c.halfBytes:
		return fmt.Errorf("%v: %s lies in both halves", st.Op, c.name(r, st.Count))
	}
	return nil
}

// memory is the shadow that a Staging or Scratch region lies in.
func (c *Checker) memory(r Region) *shadow {
	if r.Space == Scratch {
		return &c.scratch[r.Rank]
	}
	return &c.staging[r.Rank]
}

// read notes a read of lo..hi by the present step and proves that it comes
// after all writes that it sees.
func (c *Checker) read(m *shadow, lo, hi int64, r Region, st *Step) ([]segment, error) {
	seen, ok := m.read(lo, hi, c.now)
	if !ok {
		return nil, fmt.Errorf("%v reads %s, which was never written", st.Op, c.name(r, st.Count))
	}
	for _, s := range seen {
		if !c.over(s.writer) {
			return nil, fmt.Errorf("%v reads %s not surely written by %s (RAW)",
				st.Op, c.name(r, st.Count), c.who(s.writer))
		}
	}
	return seen, nil
}

// mayWrite proves that the present step comes after every access to lo..hi.
func (c *Checker) mayWrite(m shadow, lo, hi int64, r Region, st *Step) error {
	for _, s := range m.overlap(lo, hi) {
		if !c.over(s.writer) {
			return fmt.Errorf("%v overwrites %s not surely written by %s (WAW)",
				st.Op, c.name(r, st.Count), c.who(s.writer))
		}
		for _, a := range s.reads {
			// A step may overwrite its own tensor elements in place,
			// but not an encoded source.
			inPlace := r.Space == Tensor && a == c.now
			if !inPlace && !c.over(a) {
				return fmt.Errorf("%v overwrites %s still read by %s (WAR)",
					st.Op, c.name(r, st.Count), c.who(a))
			}
		}
	}
	return nil
}

// over reports whether an access is over before the present batch begins.
func (c *Checker) over(a access) bool {
	return !a.sameBatch(c.now) && a.seq <= c.queues[c.now.queue].clock[a.queue]
}

// who names an access in an error.
func (c *Checker) who(a access) string {
	queue := Queue(a.queue % 2)
	if a.batch < 0 {
		return fmt.Sprintf("the graph before reduction %d (rank %d %v)", a.reduction, a.queue/2, queue)
	}
	return fmt.Sprintf("rank %d %v in reduction %d batch %d step %d", a.queue/2, queue, a.reduction, a.batch, a.step)
}

// name names a region in an error, as in "staging[1] bytes 0..4096".
func (c *Checker) name(r Region, count int64) string {
	if r.Space == Tensor {
		return fmt.Sprintf("tensor[%d] elements %d..%d", r.Rank, r.Offset, r.Offset+count)
	}
	return fmt.Sprintf("%s[%d] bytes %d..%d", r.Space.name(), r.Rank, r.Offset, r.Offset+c.s.Wire.Bytes(count))
}

func (s Space) name() string {
	names := [...]string{"tensor", "staging", "scratch", "zero"}
	if int(s) >= len(names) {
		return "unknown memory"
	}
	return names[s]
}
