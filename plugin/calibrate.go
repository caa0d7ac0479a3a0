package plugin

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/vkimpl"
)

const (
	// calibrationLimit bounds what a comm_init spends on measuring.
	calibrationLimit = 100 * time.Millisecond
	// calibrationPasses: the best of so many is taken.
	calibrationPasses  = 3
	calibrationLargest = 4 << 20
	// calibrationSmall: below it fixed costs are all, and an algorithm with
	// chunks is single-shot with more of them.
	calibrationSmall = 128 << 10
	// calibrationMargin is how much faster another algorithm must be: less is
	// noise, and single-shot in F32 gives the bits of stock.
	calibrationMargin = 0.9
)

var calibrationSizes = []int64{16 << 10, 64 << 10, 256 << 10, 1 << 20, calibrationLargest}

// measured remembers the outcome for a set of devices: contexts come in pairs
// (target and draft model) and are made again when a model is reloaded.
var measured struct {
	sync.Mutex
	outcomes map[string]outcome
}

type outcome struct {
	rules []rule
	err   error // devices that were too slow once are not asked again
}

// calibrate measures the algorithms on the actual devices and returns which is
// fastest at which size. An error says why it could not; the caller then keeps
// its table. half is the staging half that is due, and comes back as it is then.
func calibrate(ranks *vkimpl.Ranks, wide allreduce.Wire, half int) (rules []rule, next int, err error) {
	key := fmt.Sprint(ranks.Kind(), wide, ranks.HasRelay())
	for rank, d := range ranks.Devices {
		key += fmt.Sprintf(" %x %v", d.DeviceUUID, ranks.StagingHandle(rank))
	}
	measured.Lock()
	defer measured.Unlock()
	if o, ok := measured.outcomes[key]; ok {
		return o.rules, half, o.err
	}
	c := calibration{ranks: ranks, wide: wide,
		programs: map[calibrationKey]*vkimpl.Program{}, half: half}
	times, err := c.run()
	failed := ranks.Failed()
	if failed == nil && errors.Is(err, errStuck) {
		failed = err
	}
	if failed != nil {
		ranks.Release()
		c.close()
		return nil, c.half, failed
	}
	c.close()
	if err == nil {
		rules = fastest(calibrationSizes, times)
	}
	if measured.outcomes == nil {
		measured.outcomes = map[string]outcome{}
	}
	measured.outcomes[key] = outcome{rules, err}
	return rules, c.half, err
}

type calibration struct {
	ranks    *vkimpl.Ranks
	deadline time.Time
	wide     allreduce.Wire
	buffers  []*vkimpl.Buffer
	bindings []vkimpl.Binding
	programs map[calibrationKey]*vkimpl.Program
	half     int
}

type calibrationKey struct {
	algorithm string
	bytes     int64
	half      int
}

func (c *calibration) run() (map[string][]float64, error) {
	for r := range c.ranks.Devices {
		b, binding, err := c.ranks.DeviceBuffer(r, calibrationLargest/4)
		if err != nil {
			return nil, err
		}
		c.buffers, c.bindings = append(c.buffers, b), append(c.bindings, binding)
	}
	if err := c.warm(); err != nil {
		return nil, err
	}
	c.deadline = time.Now().Add(calibrationLimit)
	times := map[string][]float64{}
	for _, bytes := range calibrationSizes {
		for _, algorithm := range algorithmNames() {
			seconds := math.Inf(1)
			if slices.Contains(candidates(c.ranks, bytes), algorithm) {
				var err error
				if seconds, err = c.measure(algorithm, bytes); err != nil {
					return nil, err
				}
			}
			times[algorithm] = append(times[algorithm], seconds)
		}
	}
	return times, nil
}

// candidates for automatic choice at a size. The ring associates otherwise than
// stock and is left to who asks for it.
func candidates(ranks *vkimpl.Ranks, bytes int64) []string {
	switch {
	case bytes >= calibrationSmall:
		return []string{allreduce.AlgorithmSingleShot, allreduce.AlgorithmPipeline, allreduce.AlgorithmTwoShot}
	case ranks.HasRelay():
		return []string{allreduce.AlgorithmSingleShot, allreduce.AlgorithmRelay}
	}
	return []string{allreduce.AlgorithmSingleShot}
}

// repeats of a size are queued behind each other, as a model's layers queue
// theirs, so that the wait of the host at the end counts little: 1 ms or so.
func repeats(bytes int64) int {
	if bytes < calibrationSmall {
		return 32
	}
	return 4
}

// warm runs every candidate once, which builds its kernels: that is not what is
// measured, and is needed anyway.
func (c *calibration) warm() error {
	s := selection{wire: c.wide, wireFrom: defaultWireFrom}
	for _, bytes := range []int64{calibrationSizes[0], calibrationLargest} {
		for _, algorithm := range candidates(c.ranks, bytes) {
			if err := c.submit(&s, algorithm, bytes); err != nil {
				return err
			}
		}
	}
	return c.rest()
}

// errStuck: reductions that passed the self-test do not end.
var errStuck = fmt.Errorf("the ranks did not come to rest in %v", selfTestTimeout+freeTimeout)

// rest waits for the ranks. Devices that are merely slow are left to the table.
func (c *calibration) rest() error {
	switch {
	case idle(c.ranks, selfTestTimeout):
		return nil
	case idle(c.ranks, freeTimeout):
		return fmt.Errorf("the ranks did not come to rest in %v", selfTestTimeout)
	}
	return errStuck
}

// measure returns the seconds that one reduction takes of several that are
// queued, at best.
func (c *calibration) measure(algorithm string, bytes int64) (float64, error) {
	s := selection{wire: c.wide, wireFrom: defaultWireFrom}
	best := math.Inf(1)
	for range calibrationPasses {
		start := time.Now()
		for range repeats(bytes) {
			if err := c.submit(&s, algorithm, bytes); err != nil {
				return 0, err
			}
		}
		if err := c.rest(); err != nil {
			return 0, err
		}
		best = min(best, time.Since(start).Seconds()/float64(repeats(bytes)))
		if time.Now().After(c.deadline) {
			return 0, fmt.Errorf("it takes longer than %v", calibrationLimit)
		}
	}
	return best, nil
}

// submit runs one reduction, recorded when its half is first met.
func (c *calibration) submit(s *selection, algorithm string, bytes int64) error {
	key := calibrationKey{algorithm, bytes, c.half}
	program := c.programs[key]
	if program == nil {
		schedule, err := allreduce.Build(algorithm, params(c.ranks, s, algorithm, bytes/4, 0, c.half))
		if err != nil {
			return err
		}
		if program, err = c.ranks.Program(schedule, c.bindings); err != nil {
			return err
		}
		c.programs[key] = program
	}
	if err := c.ranks.Submit(program); err != nil {
		return err
	}
	c.half = nextHalf(c.half, program.Schedule)
	return nil
}

func (c *calibration) close() {
	if !idle(c.ranks, selfTestTimeout) {
		return // leaked rather than freed in use
	}
	for _, p := range c.programs {
		p.Close()
	}
	for _, b := range c.buffers {
		b.Close()
	}
}

// fastest turns times[algorithm][i], at sizes[i], into rules. Sizes between two
// measured ones change over at their geometric mean; the smallest size's choice
// holds down to 0, the largest's up to max.
func fastest(sizes []int64, times map[string][]float64) []rule {
	var names []string
	var cuts []int64
	for i := range sizes {
		name := allreduce.AlgorithmSingleShot
		least := times[name][i] * calibrationMargin
		for _, other := range algorithmNames() {
			if t, ok := times[other]; ok && other != name && t[i] < least {
				name, least = other, t[i]
			}
		}
		if len(names) == 0 {
			names = append(names, name)
		} else if names[len(names)-1] != name {
			names = append(names, name)
			cuts = append(cuts, geometricMean(sizes[i-1], sizes[i]))
		}
	}
	return rulesOf(names, cuts)
}

// geometricMean in whole KiB.
func geometricMean(a, b int64) int64 {
	return int64(math.Sqrt(float64(a)*float64(b))) >> 10 << 10
}

// rulesOf lets names[i] hold up to cuts[i].
func rulesOf(names []string, cuts []int64) []rule {
	cuts = append(slices.Sorted(slices.Values(cuts)), maxBytes)
	var rules []rule
	from := int64(0)
	for i, to := range cuts {
		rules = append(rules, rule{names[i], from, to})
		from = to
	}
	return rules
}
