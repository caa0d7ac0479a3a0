package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/semaphores"
	"ggmlvkcomm/vkimpl"
)

// What plugin/select.go and plugin/calibrate.go decide with. A test compares the
// constants.
const (
	defaultStagingMB  = 16
	defaultWireFrom   = 1 << 20
	calibrationMargin = 0.9
	calibrationMillis = 100
	calibrationPasses = 3 // the best counts
	calibrationSmall  = 128 << 10
)

var choiceSizes = []int64{16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}

// choice is what a communicator over all ranks would do.
type choice struct {
	Ordering string      `json:"ordering"`
	Why      string      `json:"why,omitempty"`
	Relay    string      `json:"relay"` // yes, or why not
	SelfTest string      `json:"selfTest"`
	Rules    string      `json:"rules"`  // as GGML_VK_COMM_ALGO
	Source   string      `json:"source"` // measured, or why the default table
	Wire     string      `json:"wire"`
	Times    []timesLine `json:"times"`
}

// timesLine is what was measured at one size, us by algorithm.
type timesLine struct {
	Size int64              `json:"size"`
	Us   map[string]float64 `json:"us"`
}

// communicator tries one over all ranks.
func (d *diagnosis) communicator(s *vkimpl.Standalone) {
	g, err := openRig(s, s.Adopted, defaultStagingMB<<20, choiceSizes[len(choiceSizes)-1], semaphores.Auto)
	if err != nil {
		d.problem(fmt.Sprintf("no communicator over all ranks: %v", err), "see the devices above")
		return
	}
	c := &choice{Ordering: string(g.ranks.Kind()), Why: g.why, Relay: "yes", SelfTest: "passed",
		Wire: "f32 below " + sizeText(defaultWireFrom) + ", f16 from there on"}
	d.Communicator = c
	g.openRelay()
	if g.noRelay != "" {
		c.Relay = g.noRelay
	}
	wrong, err := g.selfTest()
	switch {
	case err != nil:
		c.SelfTest = err.Error()
	case wrong > 0:
		c.SelfTest = fmt.Sprintf("%d wrong elements", wrong)
	}
	if c.SelfTest != "passed" {
		d.stuck = true
		d.problem("self-test over "+c.Ordering+" ordering: "+c.SelfTest, "vkcomm run --proxy; please report it with this output")
		return
	}
	if err := c.measure(g); err != nil {
		d.stuck = true
		d.problem("measuring: "+err.Error(), "see the driver's log")
		return
	}
	g.close()
}

func (g *rig) selfTest() (wrong int64, err error) {
	const elements = 12293
	w, err := g.reduction(allreduce.AlgorithmSingleShot, allreduce.F32, 4*elements, 0)
	if err != nil {
		return 0, err
	}
	for round := 0; round < 2 && err == nil; round++ {
		var n int64
		n, err = g.check(w, elements, round)
		wrong += n
	}
	if err == nil {
		w.close()
	}
	return wrong, err
}

// measure times the candidates as a communicator does, with the difference that
// it takes the time that it takes.
func (c *choice) measure(g *rig) error {
	if err := g.clear(choiceSizes[len(choiceSizes)-1] / 4); err != nil {
		return err
	}
	var took time.Duration
	for _, bytes := range choiceSizes {
		line := timesLine{bytes, map[string]float64{}}
		wire := allreduce.F32
		if bytes >= defaultWireFrom {
			wire = allreduce.F16
		}
		for _, name := range g.candidates(bytes) {
			w, err := g.reduction(name, wire, bytes, 0)
			if err != nil {
				return err
			}
			if err := w.submit(g); err != nil { // kernels are built, which is not counted
				return err
			}
			if err := g.drain(); err != nil {
				return err
			}
			start := time.Now()
			seconds, err := g.measure(w, 0, calibrationPasses, repeats(bytes))
			if err != nil {
				return err
			}
			took += time.Since(start)
			w.close()
			line.Us[name] = 1e6 * slices.Min(seconds)
		}
		c.Times = append(c.Times, line)
	}
	c.Rules, c.Source = formatRules(fastest(c.Times)), "measured"
	if took > calibrationMillis*time.Millisecond {
		c.Source = fmt.Sprintf("measured here in %d ms; a communicator stops at %d ms and would use %s", took.Milliseconds(), calibrationMillis, formatRules(defaultRules(g.world)))
	}
	return nil
}

// candidates at a size. Below a bound fixed costs are all, and the ring is left
// to who asks for it.
func (g *rig) candidates(bytes int64) []string {
	switch {
	case bytes >= calibrationSmall:
		return []string{allreduce.AlgorithmSingleShot, allreduce.AlgorithmPipeline, allreduce.AlgorithmTwoShot}
	case g.ranks.HasRelay():
		return []string{allreduce.AlgorithmSingleShot, allreduce.AlgorithmRelay}
	}
	return []string{allreduce.AlgorithmSingleShot}
}

// repeats of a size are queued behind each other.
func repeats(bytes int64) int {
	if bytes < calibrationSmall {
		return 32
	}
	return 4
}

// rule is an algorithm for sizes below to.
type rule struct {
	algorithm string
	to        int64
}

// defaultRules are those of plugin/select.go's table.
func defaultRules(world int) []rule {
	if world == 2 {
		return []rule{{allreduce.AlgorithmSingleShot, 8 << 20}, {allreduce.AlgorithmTwoShot, math.MaxInt64}}
	}
	return []rule{{allreduce.AlgorithmSingleShot, 256 << 10}, {allreduce.AlgorithmTwoShot, math.MaxInt64}}
}

// fastest is as in plugin/calibrate.go: single-shot unless another one is faster
// by the margin, changing over at the geometric mean of two sizes.
func fastest(times []timesLine) (rules []rule) {
	for i, line := range times {
		name := allreduce.AlgorithmSingleShot
		least := line.Us[name] * calibrationMargin
		for _, other := range algorithmNames() {
			if us, ok := line.Us[other]; ok && other != name && us < least {
				name, least = other, us
			}
		}
		if n := len(rules); n > 0 && rules[n-1].algorithm == name {
			continue
		} else if n > 0 {
			rules[n-1].to = int64(math.Sqrt(float64(times[i-1].Size)*float64(line.Size))) >> 10 << 10
		}
		rules = append(rules, rule{name, math.MaxInt64})
	}
	return rules
}

func formatRules(rules []rule) string {
	var parts []string
	from := "0"
	for _, r := range rules {
		to := "max"
		if r.to != math.MaxInt64 {
			to = sizeText(r.to)
		}
		parts = append(parts, fmt.Sprintf("%s:%s-%s", r.algorithm, from, to))
		from = to
	}
	return strings.Join(parts, ",")
}

func (c *choice) print(w io.Writer) {
	fmt.Fprintf(w, "\na communicator over all ranks: %s ordering, self-test %s, relay: %s\n", c.Ordering, c.SelfTest, c.Relay)
	if c.Rules == "" {
		return
	}
	fmt.Fprintf(w, "  algorithms: %s (%s)\n  wire: %s\n", c.Rules, c.Source, c.Wire)
	for _, line := range c.Times {
		fmt.Fprintf(w, "  %5s:", sizeText(line.Size))
		for _, name := range algorithmNames() {
			if us, ok := line.Us[name]; ok {
				fmt.Fprintf(w, "  %s %s us", name, fixed(us, 9))
			}
		}
		fmt.Fprintln(w)
	}
}
