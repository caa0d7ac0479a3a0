package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/plugin/choice"
	"ggmlvkcomm/semaphores"
	"ggmlvkcomm/vkimpl"
)

// decision is what a communicator over all ranks would do.
type decision struct {
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
	g, err := openRig(s, s.Adopted, choice.StagingMB<<20, choice.Largest, semaphores.Auto)
	if err != nil {
		d.problem(fmt.Sprintf("no communicator over all ranks: %v", err), "see the devices above")
		return
	}
	c := &decision{Ordering: string(g.ranks.Kind()), Why: g.why, Relay: "yes", SelfTest: "passed",
		Wire: "f32 below " + sizeText(choice.WireFrom) + ", f16 from there on"}
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

// measure times the candidates as a communicator does, with the differences that
// it takes the time that it takes, and that each has its passes one after the other.
func (c *decision) measure(g *rig) error {
	if err := g.clear(choice.Largest / 4); err != nil {
		return err
	}
	var took time.Duration
	for _, bytes := range choice.Sizes {
		line := timesLine{bytes, map[string]float64{}}
		wire := allreduce.F32
		if bytes >= choice.WireFrom {
			wire = allreduce.F16
		}
		for _, name := range choice.Candidates(g.ranks.HasRelay(), bytes) {
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
			seconds, err := g.measure(w, 0, choice.Passes, choice.Repeats(bytes))
			if err != nil {
				return err
			}
			took += time.Since(start)
			w.close()
			line.Us[name] = 1e6 * slices.Min(seconds)
		}
		c.Times = append(c.Times, line)
	}
	c.Rules, c.Source = rules(c.Times).String(), "measured"
	if took > choice.Limit {
		c.Source = fmt.Sprintf("measured here in %d ms; a communicator stops at %d ms and would use %s for the sizes that are left", took.Milliseconds(), choice.Limit.Milliseconds(), choice.Default(g.world))
	}
	return nil
}

// rules that are fastest in times.
func rules(times []timesLine) choice.Rules {
	var sizes []int64
	seconds := map[string][]float64{}
	for i, line := range times {
		sizes = append(sizes, line.Size)
		for _, name := range choice.Names() {
			us, ok := line.Us[name]
			if !ok {
				us = math.Inf(1)
			}
			seconds[name] = append(seconds[name][:i], 1e-6*us)
		}
	}
	return choice.Fastest(sizes, seconds, nil)
}

func (c *decision) print(w io.Writer) {
	fmt.Fprintf(w, "\na communicator over all ranks: %s ordering, self-test %s, relay: %s\n", c.Ordering, c.SelfTest, c.Relay)
	if c.Rules == "" {
		return
	}
	fmt.Fprintf(w, "  algorithms: %s (%s)\n  wire: %s\n", c.Rules, c.Source, c.Wire)
	for _, line := range c.Times {
		fmt.Fprintf(w, "  %5s:", sizeText(line.Size))
		for _, name := range choice.Names() {
			if us, ok := line.Us[name]; ok {
				fmt.Fprintf(w, "  %s %s us", name, fixed(us, 9))
			}
		}
		fmt.Fprintln(w)
	}
}
