package plugin

import (
	"fmt"
	"math"
	"time"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/vkimpl"
)

const (
	// selfTestTimeout bounds one wait. lavapipe compiles a pipeline at its
	// first dispatch, which takes hundreds of milliseconds.
	selfTestTimeout = 5 * time.Second
	// releaseTimeout is what queues get to come to rest once released.
	releaseTimeout = 2 * time.Second
	// selfTestChunk makes a few thousand elements run through several rounds.
	selfTestChunk = 4096
)

// selfTest reduces small tensors with exact sums through the ordering and the
// staging in use, on the real devices, and checks every rank's bits. It also
// compiles every pipeline that decode needs. When it fails, queues that wait
// for the communicator have been released. half is the staging half due next.
func selfTest(ranks *vkimpl.Ranks) (half int, err error) {
	t := selfTester{ranks: ranks, world: len(ranks.Devices)}
	const largest = 3*selfTestChunk/4 + 5
	for r := range t.world {
		b, binding, err := ranks.HostBuffer(r, largest)
		if err != nil {
			return 0, err
		}
		t.buffers, t.bindings = append(t.buffers, b), append(t.bindings, binding)
	}
	err = t.run(1, 0)
	if err == nil {
		err = t.run(largest, 0)
	}
	if err == nil {
		err = t.run(largest, 1) // rank 0 contributes nothing
	}
	if err != nil {
		ranks.Release()
		if !idle(ranks, releaseTimeout) {
			return 0, err // the buffers stay alive: a queue may still use them
		}
	}
	for _, p := range t.programs {
		p.Close()
	}
	for _, b := range t.buffers {
		b.Close()
	}
	return t.half, err
}

type selfTester struct {
	ranks    *vkimpl.Ranks
	world    int
	half     int
	buffers  []*vkimpl.Buffer
	bindings []vkimpl.Binding
	programs []*vkimpl.Program
}

// operand of a rank: small integers, whose sums are exact in any order.
func operand(rank, i int) float32 { return float32((i*7+rank*13)%64 - 20) }

func (t *selfTester) run(elements int64, zero uint64) error {
	for r, b := range t.buffers {
		for i := range b.Floats()[:elements] {
			b.Floats()[i] = operand(r, i)
			if zero>>r&1 != 0 {
				b.Floats()[i] = float32(math.NaN())
			}
		}
	}
	schedule, err := allreduce.SingleShot(allreduce.Params{World: t.world, Elements: elements, ZeroRanks: zero,
		Half: t.half, HalfBytes: t.ranks.HalfBytes(), ChunkBytes: selfTestChunk})
	if err != nil {
		return err
	}
	program, err := t.ranks.Program(schedule, t.bindings)
	if err != nil {
		return err
	}
	t.programs = append(t.programs, program)
	if err := t.ranks.Submit(program); err != nil {
		return err
	}
	t.half = (t.half + schedule.Rounds) % 2
	for r := range t.world {
		switch ok, err := t.ranks.Drain(r, selfTestTimeout); {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("rank %d did not finish in %v", r, selfTestTimeout)
		}
	}
	return t.compare(elements, zero)
}

func (t *selfTester) compare(elements int64, zero uint64) error {
	for i := range int(elements) {
		var sum float32
		for r := range t.world {
			if zero>>r&1 == 0 {
				sum += operand(r, i)
			}
		}
		for r, b := range t.buffers {
			if got := b.Floats()[i]; math.Float32bits(got) != math.Float32bits(sum) {
				return fmt.Errorf("rank %d has %v for element %d of %d, the sum is %v", r, got, i, elements, sum)
			}
		}
	}
	return nil
}
