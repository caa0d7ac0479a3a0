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
	rules  choice.Rules
	source string
	err    error // devices that were too slow once are not asked again
}

// calibrate measures the algorithms on the actual devices, and replaces the rules
// of choose by which is fastest at which size. An error says why it could not. half
// is the staging half that is due, and comes back as it is then.
func calibrate(ranks *vkimpl.Ranks, choose *selection, half int) (next int, err error) {
	wide := choose.wire
	key := fmt.Sprint(ranks.Kind(), wide, ranks.HasRelay())
	for rank, d := range ranks.Devices {
		key += fmt.Sprintf(" %x %v", d.DeviceUUID, ranks.StagingHandle(rank))
	}
	measured.Lock()
	defer measured.Unlock()
	o, known := measured.outcomes[key]
	if !known {
		c := calibration{ranks: ranks, wide: wide, programs: map[calibrationKey]*vkimpl.Program{}, half: half}
		o = c.outcome(choose.rules)
		half = c.half
		failed := ranks.Failed()
		if failed == nil && errors.Is(o.err, errStuck) {
			failed = o.err
		}
		if failed != nil {
			ranks.Release()
			c.close()
			return half, failed
		}
		c.close()
		if measured.outcomes == nil {
			measured.outcomes = map[string]outcome{}
		}
		measured.outcomes[key] = o
	}
	if o.err == nil {
		choose.rules, choose.source = o.rules, o.source
	}
	return half, o.err
}

type calibration struct {
	ranks    *vkimpl.Ranks
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

// outcome measures; rest serves the sizes for which there is no time.
func (c *calibration) outcome(rest choice.Rules) (o outcome) {
	times, reached, err := c.run()
	if err != nil {
		return outcome{err: err}
	}
	o = outcome{rules: choice.Fastest(choice.Sizes, times, rest), source: "measured"}
	if reached < choice.Largest {
		o.source += " up to " + choice.FormatBytes(reached)
	}
	return o
}

// run returns seconds by algorithm, one for each of choice.Sizes, and the largest
// size that was measured.
func (c *calibration) run() (times map[string][]float64, reached int64, err error) {
	for r := range c.ranks.Devices {
		b, binding, err := c.ranks.DeviceBuffer(r, choice.Largest/4)
		if err != nil {
			return nil, 0, err
		}
		c.buffers, c.bindings = append(c.buffers, b), append(c.bindings, binding)
	}
	if err := c.warm(); err != nil {
		return nil, 0, err
	}
	times = map[string][]float64{}
	deadline := time.Now().Add(choice.Limit)
	var took time.Duration // by the latest pass
	for i, bytes := range choice.Sizes {
		for _, algorithm := range choice.Names() {
			times[algorithm] = append(times[algorithm], math.Inf(1))
		}
		if i > 0 {
			took *= time.Duration(max(1, passBytes(bytes)/passBytes(choice.Sizes[i-1])))
		}
		for range choice.Passes { // by turns: a slow moment of the machine is not one algorithm's
			start := time.Now()
			if start.Add(took).After(deadline) {
				break
			}
			if err := c.pass(times, i); err != nil {
				return nil, 0, err
			}
			took, reached = time.Since(start), bytes
		}
	}
	return times, reached, nil
}

// passBytes is what an algorithm reduces in one pass at a size.
func passBytes(bytes int64) int64 { return bytes * int64(choice.Repeats(bytes)) }

// pass measures every candidate once at the i-th size.
func (c *calibration) pass(times map[string][]float64, i int) error {
	bytes := choice.Sizes[i]
	for _, algorithm := range choice.Candidates(c.ranks.HasRelay(), bytes) {
		seconds, err := c.measure(algorithm, bytes)
		if err != nil {
			return err
		}
		logf(levelDebug, "calibration: %s of %s takes %.1f us", algorithm, choice.FormatBytes(bytes), 1e6*seconds)
		times[algorithm][i] = min(times[algorithm][i], seconds)
	}
	return nil
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
