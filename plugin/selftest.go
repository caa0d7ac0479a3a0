package plugin

import (
	"fmt"
	"math"
	"sync/atomic"
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
	return testReductions(selfTester{ranks: ranks, algorithm: allreduce.AlgorithmSingleShot})
}

// testCopyQueues is selfTest for the ranks whose copy queue writes for them.
func testCopyQueues(ranks *vkimpl.Ranks) (half int, err error) {
	return testReductions(selfTester{ranks: ranks, algorithm: allreduce.AlgorithmPipeline, copyQueues: transferQueues(ranks)})
}

func testReductions(t selfTester) (half int, err error) {
	ranks := t.ranks
	t.world = len(ranks.Devices)
	const largest = 3*selfTestChunk/4 + 5
	for r := range t.world {
		b, binding, err := ranks.HostBuffer(r, largest)
		if err != nil {
			t.close()
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
	t.close()
	return t.half, err
}

func (t *selfTester) close() {
	for _, p := range t.programs {
		p.Close()
	}
	for _, b := range t.buffers {
		b.Close()
	}
}

// Patience of the relay's kernels: in the self-test, where nothing else is
// queued and a device that cannot run all ranks' kernels at once must show it
// soon; and in use, where a peer may have a prompt or another context to finish
// first, or be stopped by a debugger.
const relayTestPatience, relayPatience = 50 * time.Millisecond, 30 * time.Second

// testRelay is selfTest for the relay. Its kernels give up by themselves, so
// that nothing needs to be released.
func testRelay(ranks *vkimpl.Ranks) error {
	t := selfTester{ranks: ranks, world: len(ranks.Devices), algorithm: allreduce.AlgorithmRelay}
	const largest = 16385
	for r := range t.world {
		b, binding, err := ranks.HostBuffer(r, largest)
		if err != nil {
			t.close()
			return err
		}
		t.buffers, t.bindings = append(t.buffers, b), append(t.bindings, binding)
	}
	ranks.SetRelayPatience(relayTestPatience)
	var err error
	for i := 0; err == nil && i < 6; i++ { // every half several times
		err = t.run([]int64{1, 257, largest}[i%3], uint64(i/3))
	}
	ranks.SetRelayPatience(relayPatience)
	t.close()
	return err
}

type selfTester struct {
	ranks      *vkimpl.Ranks
	algorithm  string
	copyQueues uint64
	world      int
	trial      int
	half       int
	buffers    []*vkimpl.Buffer
	bindings   []vkimpl.Binding
	programs   []*vkimpl.Program
}

// trials counts them in the process. Each has operands of its own, so that what
// an earlier one left in staging is not taken for what should have arrived.
var trials atomic.Int64

// operand of a rank: small integers, whose sums are exact in any order.
func operand(trial, rank, i int) float32 { return float32((trial*5+i*7+rank*13)%64 - 20) }

func (t *selfTester) run(elements int64, zero uint64) error {
	t.trial = int(trials.Add(1))
	for r, b := range t.buffers {
		for i := range b.Floats()[:elements] {
			b.Floats()[i] = operand(t.trial, r, i)
			if zero>>r&1 != 0 {
				b.Floats()[i] = float32(math.NaN())
			}
		}
	}
	schedule, err := allreduce.Build(t.algorithm, allreduce.Params{World: t.world, Elements: elements, ZeroRanks: zero,
		Half: t.half, HalfBytes: t.ranks.HalfBytes(), ChunkBytes: selfTestChunk, TransferQueue: t.copyQueues})
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
	t.half = nextHalf(t.half, schedule)
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
				sum += operand(t.trial, r, i)
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
