package plugin

import (
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
	// calibrationRepeats are queued behind each other, as a model's layers
	// queue theirs, so that the time of one does not include a host wait.
	calibrationRepeats = 4
	calibrationLargest = 4 << 20
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
	for _, d := range ranks.Devices {
		key += fmt.Sprintf(" %x", d.DeviceUUID)
	}
	measured.Lock()
	defer measured.Unlock()
	if o, ok := measured.outcomes[key]; ok {
		return o.rules, half, o.err
	}
	c := calibration{ranks: ranks, deadline: time.Now().Add(calibrationLimit), wide: wide,
		programs: map[calibrationKey]*vkimpl.Program{}, half: half}
	times, err := c.run()
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
	times := map[string][]float64{}
	for _, bytes := range calibrationSizes {
		for _, algorithm := range candidates(c.ranks) {
			if algorithm == allreduce.AlgorithmRelay && bytes > relayBytes {
				times[algorithm] = append(times[algorithm], math.Inf(1))
				continue
			}
			seconds, err := c.measure(algorithm, bytes)
			if err != nil {
				return nil, err
			}
			times[algorithm] = append(times[algorithm], seconds)
		}
	}
	return times, nil
}

// candidates for automatic choice. The ring associates otherwise than stock and
// is left to who asks for it.
func candidates(ranks *vkimpl.Ranks) []string {
	names := []string{allreduce.AlgorithmSingleShot, allreduce.AlgorithmPipeline}
	if len(ranks.Devices) > 2 {
		names = append(names, allreduce.AlgorithmTwoShot)
	}
	if ranks.HasRelay() {
		names = append(names, allreduce.AlgorithmRelay)
	}
	return names
}

// measure returns the seconds that one reduction takes of several that are
// queued, the first submission of the program not counted.
func (c *calibration) measure(algorithm string, bytes int64) (float64, error) {
	s := selection{wire: c.wide, wireFrom: defaultWireFrom}
	var seconds float64
	for pass := range 2 {
		start := time.Now()
		for range calibrationRepeats {
			if err := c.submit(&s, algorithm, bytes); err != nil {
				return 0, err
			}
		}
		if !idle(c.ranks, selfTestTimeout) {
			return 0, fmt.Errorf("the ranks did not come to rest in %v", selfTestTimeout)
		}
		if pass > 0 {
			seconds = time.Since(start).Seconds() / calibrationRepeats
		}
		if time.Now().After(c.deadline) {
			return 0, fmt.Errorf("it takes longer than %v", calibrationLimit)
		}
	}
	return seconds, nil
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
