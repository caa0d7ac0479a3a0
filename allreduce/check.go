package allreduce

import (
	"errors"
	"fmt"
	"slices"
)

// Check proves that the reductions of seq, run one after the other on the same
// ranks and staging, are correct: see Checker.
func Check(seq []*Schedule) error {
	var c Checker
	for _, s := range seq {
		if err := c.Add(s); err != nil {
			return err
		}
	}
	return nil
}

// Checker proves consecutive reductions correct, one Add each. What it knows of
// the machine is this: batches on one queue run in order, fully ordered; the
// two queues of a rank, and different ranks, are ordered by waits alone; a
// signal covers everything before it on its queue; the host's graph writes a
// rank's tensor on its compute queue before the reduction, and goes on there
// after it. From that it proves that
//
//   - every wait is for a signal of an earlier batch in submission order, so
//     that no queue can be dead-locked; timelines increase, and end as
//     Schedule.Signals says; at the end of a reduction a rank's compute queue
//     comes after all work of its transfer queue;
//   - no step reads what is not surely written (RAW), and none overwrites what
//     is not surely written (WAW) and read (WAR) by every earlier access, within
//     a reduction and across all of them; steps of one batch are independent;
//   - Staging is written, Scratch and Tensor touched, by their own rank alone;
//     every region is in bounds and aligned, and the staging halves are used
//     in turn;
//   - every element of every rank's tensor ends as the documented expression
//     (see Schedule.Algorithm), the same on all ranks, wire rounding included.
//
// The zero Checker is ready to use. After an error it must not be used again.
type Checker struct {
	world      int
	halfBytes  int64
	half       int // half that the next reduction has to begin with
	reductions int
	queues     []queueState // by line
	staging    []shadow     // of each rank
	scratch    []shadow
	tensor     []shadow
	exprs      *exprTable

	s     *Schedule // being added
	now   access    // the step being checked
	turns []turn    // use of staging halves, of each rank
}

// queueState is what is known of one queue.
type queueState struct {
	seq   int32   // batches so far
	clock []int32 // batches of every queue that are over before the next one
	// former is the clock of the last signal of earlier reductions.
	former  []int32
	signals []signal // of this reduction
}

// signal is a value of a timeline with what is over when it is reached.
type signal struct {
	value int64
	clock []int32
}

// turn follows one rank's writes through the staging halves.
type turn struct {
	rounds int
	half   int
}

// Add proves the next reduction. An error names the reduction, the batch and
// the step by their indices, and the memory by rank.
func (c *Checker) Add(s *Schedule) error {
	if err := c.begin(s); err != nil {
		return fmt.Errorf("reduction %d: %w", c.reductions, err)
	}
	for i := range s.Batches {
		b := &s.Batches[i]
		if err := c.batch(i, b); err != nil {
			return fmt.Errorf("reduction %d batch %d%w", c.reductions, i, err)
		}
	}
	if err := c.end(); err != nil {
		return fmt.Errorf("reduction %d: %w", c.reductions, err)
	}
	c.reductions++
	return nil
}

// begin takes s in: every rank's compute queue runs the host's graph, which
// leaves the operands in the tensors.
func (c *Checker) begin(s *Schedule) error {
	if s == nil {
		return errors.New("no schedule")
	}
	p := Params{World: s.World, Elements: s.Elements, Wire: s.Wire, ZeroRanks: s.ZeroRanks,
		Half: s.Half, HalfBytes: s.HalfBytes}
	if err := p.Check(); err != nil {
		return err
	}
	if c.queues == nil {
		c.setUp(s)
	}
	switch {
	case s.World != c.world || s.HalfBytes != c.halfBytes:
		return fmt.Errorf("%d ranks with halves of %d bytes, earlier reductions had %d with %d",
			s.World, s.HalfBytes, c.world, c.halfBytes)
	case s.Half != c.half:
		return fmt.Errorf("begins with staging half %d, it is the turn of half %d", s.Half, c.half)
	case s.Rounds < 1:
		return fmt.Errorf("%d rounds", s.Rounds)
	case len(s.Signals) != s.World:
		return fmt.Errorf("signals of %d ranks, world size is %d", len(s.Signals), s.World)
	}
	c.s = s
	clear(c.turns)
	for rank := range c.tensor {
		graph := c.advance(line(rank, Compute), -1)
		c.tensor[rank] = append(c.tensor[rank][:0], segment{
			hi: s.Elements, writer: graph, value: c.exprs.initial(s, rank),
		})
	}
	return nil
}

func (c *Checker) setUp(s *Schedule) {
	c.world, c.halfBytes, c.half = s.World, s.HalfBytes, s.Half
	c.queues = make([]queueState, 2*s.World)
	for i := range c.queues {
		c.queues[i].clock = make([]int32, len(c.queues))
	}
	c.staging = make([]shadow, s.World)
	c.scratch = make([]shadow, s.World)
	c.tensor = make([]shadow, s.World)
	c.turns = make([]turn, s.World)
	c.exprs = newExprTable()
}

// advance begins the next batch on a queue.
func (c *Checker) advance(queue, batch int) access {
	q := &c.queues[queue]
	q.seq++
	q.clock[queue] = q.seq
	return access{queue: int32(queue), seq: q.seq, reduction: int32(c.reductions), batch: int32(batch)}
}

// batch checks one batch. Its error continues "reduction r batch b".
func (c *Checker) batch(index int, b *Batch) error {
	if b.Rank < 0 || b.Rank >= c.world || b.Queue > Transfer {
		return fmt.Errorf(": no queue %d of rank %d", b.Queue, b.Rank)
	}
	queue := line(b.Rank, b.Queue)
	for _, w := range b.Waits {
		if err := c.wait(queue, w.Point); err != nil {
			return fmt.Errorf(" (rank %d %v): %w", b.Rank, b.Queue, err)
		}
	}
	c.now = c.advance(queue, index)
	for i := range b.Steps {
		c.now.step = int32(i)
		if err := c.step(b, &b.Steps[i]); err != nil {
			return fmt.Errorf(" (rank %d %v) step %d: %w", b.Rank, b.Queue, i, err)
		}
	}
	if err := c.signal(queue, b.Signal); err != nil {
		return fmt.Errorf(" (rank %d %v): %w", b.Rank, b.Queue, err)
	}
	return nil
}

// wait lets the next batch of a queue come after point. A value of 0 or less
// is reached by earlier reductions; only 0 itself is relied on.
func (c *Checker) wait(queue int, p Point) error {
	if p.Rank < 0 || p.Rank >= c.world || p.Queue > Transfer {
		return fmt.Errorf("waits for queue %d of rank %d, which does not exist", p.Queue, p.Rank)
	}
	awaited := &c.queues[line(p.Rank, p.Queue)]
	if p.Value <= 0 {
		if p.Value == 0 {
			join(c.queues[queue].clock, awaited.former)
		}
		return nil
	}
	i, _ := slices.BinarySearchFunc(awaited.signals, p.Value, func(s signal, v int64) int {
		if s.value < v {
			return -1
		}
		return 1
	})
	if i == len(awaited.signals) {
		return fmt.Errorf("waits for value %d of rank %d %v, which no earlier batch signals (dead-lock)",
			p.Value, p.Rank, p.Queue)
	}
	join(c.queues[queue].clock, awaited.signals[i].clock)
	return nil
}

// join takes the later of two clocks into the first.
func join(clock, other []int32) {
	for i, v := range other {
		clock[i] = max(clock[i], v)
	}
}

// maxSignal is the least maxTimelineSemaphoreValueDifference that Vulkan allows
// a device to have.
const maxSignal = 1<<31 - 1

// signal notes what is over when a queue's timeline reaches value.
func (c *Checker) signal(queue int, value int64) error {
	q := &c.queues[queue]
	switch last := q.last(); {
	case value == 0:
		return nil
	case value <= last:
		return fmt.Errorf("signals %d after %d", value, last)
	case value > maxSignal:
		return fmt.Errorf("signals %d, beyond %d", value, int64(maxSignal))
	}
	q.signals = append(q.signals, signal{value, slices.Clone(q.clock)})
	return nil
}

// last is the last value that was signalled in this reduction, or 0.
func (q *queueState) last() int64 {
	if len(q.signals) == 0 {
		return 0
	}
	return q.signals[len(q.signals)-1].value
}

// end checks what has to hold when all batches are done.
func (c *Checker) end() error {
	rounds := 0
	for rank := range c.world {
		for _, q := range []Queue{Compute, Transfer} {
			state := &c.queues[line(rank, q)]
			if state.last() != c.s.Signals[rank][q] {
				return fmt.Errorf("rank %d %v ends at value %d, Signals says %d",
					rank, q, state.last(), c.s.Signals[rank][q])
			}
			if n := len(state.signals); n > 0 {
				state.former = state.signals[n-1].clock
			}
			state.signals = state.signals[:0]
		}
		transfer := line(rank, Transfer)
		if c.queues[line(rank, Compute)].clock[transfer] < c.queues[transfer].seq {
			return fmt.Errorf("rank %d ends without a wait for its transfer queue", rank)
		}
		rounds = max(rounds, c.turns[rank].rounds)
	}
	if rounds > 0 && rounds != c.s.Rounds {
		return fmt.Errorf("staging halves were changed %d times, Rounds says %d", rounds-1, c.s.Rounds-1)
	}
	c.half = (c.s.Half + c.s.Rounds) % 2
	return c.results()
}

// results compares what the tensors hold with the documented sum.
func (c *Checker) results() error {
	want, err := c.exprs.documented(c.s)
	if err != nil {
		return err
	}
	first := c.tensorRuns(0)
	for rank := range c.world {
		runs := c.tensorRuns(rank)
		for _, r := range runs {
			if !slices.Contains(want, r.e) {
				return fmt.Errorf("rank %d elements %d..%d end as %s, want %s",
					rank, r.lo, r.hi, c.exprs.text(r.e), c.exprs.text(want[0]))
			}
		}
		if !slices.Equal(runs, first) {
			return fmt.Errorf("rank %d ends with other bits than rank 0", rank)
		}
	}
	return nil
}

func (c *Checker) tensorRuns(rank int) []run {
	var runs []run
	for _, s := range c.tensor[rank] {
		runs = appendRun(runs, run{s.lo, s.hi, s.value})
	}
	return runs
}
