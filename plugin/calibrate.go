package plugin

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/plugin/choice"
	"ggmlvkcomm/vkimpl"
)

// measured remembers the outcome for a set of devices: contexts come in pairs
// (target and draft model) and are made again when a model is reloaded.
var measured struct {
	sync.Mutex
	outcomes map[string]outcome
}

type outcome struct {
	rules choice.Rules
	err   error // devices that were too slow once are not asked again
}

// calibrate measures the algorithms on the actual devices and returns which is
// fastest at which size. An error says why it could not; the caller then keeps
// its table. half is the staging half that is due, and comes back as it is then.
func calibrate(ranks *vkimpl.Ranks, wide allreduce.Wire, half int) (rules choice.Rules, next int, err error) {
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
		rules = choice.Fastest(choice.Sizes, times)
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
		b, binding, err := c.ranks.DeviceBuffer(r, choice.Largest/4)
		if err != nil {
			return nil, err
		}
		c.buffers, c.bindings = append(c.buffers, b), append(c.bindings, binding)
	}
	if err := c.warm(); err != nil {
		return nil, err
	}
	c.deadline = time.Now().Add(choice.Limit)
	times := map[string][]float64{}
	for i, bytes := range choice.Sizes {
		for _, algorithm := range choice.Names() {
			times[algorithm] = append(times[algorithm], math.Inf(1))
		}
		for range choice.Passes { // by turns: a slow moment of the machine is not one algorithm's
			for _, algorithm := range choice.Candidates(c.ranks.HasRelay(), bytes) {
				seconds, err := c.measure(algorithm, bytes)
				if err != nil {
					return nil, err
				}
				times[algorithm][i] = min(times[algorithm][i], seconds)
			}
		}
	}
	return times, nil
}

// warm runs every candidate once, which builds its kernels: that is not what is
// measured, and is needed anyway.
func (c *calibration) warm() error {
	s := selection{wire: c.wide, wireFrom: choice.WireFrom}
	for _, bytes := range []int64{choice.Sizes[0], choice.Largest} {
		for _, algorithm := range choice.Candidates(c.ranks.HasRelay(), bytes) {
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
// queued.
func (c *calibration) measure(algorithm string, bytes int64) (float64, error) {
	s := selection{wire: c.wide, wireFrom: choice.WireFrom}
	start := time.Now()
	for range choice.Repeats(bytes) {
		if err := c.submit(&s, algorithm, bytes); err != nil {
			return 0, err
		}
	}
	if err := c.rest(); err != nil {
		return 0, err
	}
	if time.Now().After(c.deadline) {
		return 0, fmt.Errorf("it takes longer than %v", choice.Limit)
	}
	return time.Since(start).Seconds() / float64(choice.Repeats(bytes)), nil
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
