package vkimpl

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/semaphores"
)

// benchRig is a communicator over the devices that benchmarks run on, with a
// tensor a rank in device memory.
type benchRig struct {
	b        *testing.B
	settings benchSettings
	s        *Standalone
	physical []int // by rank
	world    int

	ranks           *Ranks
	tensors         []*Buffer
	bindings        []Binding
	operands, spare []*Buffer // in host memory: what tensors begin with, and what they are read into
	half            int       // staging half of the next round
	rows            []benchRow
	models          []*costModel
}

// openBench makes the devices, or skips the benchmark where there are none.
func openBench(b *testing.B) *benchRig {
	b.Helper()
	g := &benchRig{b: b, settings: readBenchSettings(b)}
	probe, err := OpenStandalone(nil, StandaloneOptions{})
	if errors.Is(err, ErrNoVulkan) {
		b.Skipf("needs a Vulkan device: %v", err)
	}
	must(b, err)
	g.physical = g.settings.devices
	if g.physical == nil {
		g.physical = defaultDevices(probe.Physical)
	}
	probe.Close()
	g.world = len(g.physical)
	g.s, err = OpenStandalone(g.physical, g.settings.options)
	must(b, err)
	b.Cleanup(g.s.Close)
	return g
}

// defaultDevices is every GPU once, though two drivers may show it; or, where
// there is none, the CPU's device twice.
func defaultDevices(all []PhysicalDevice) (indices []int) {
	var seen [][16]byte
	for i, d := range all {
		if d.Kind != "cpu" && d.Kind != "other" && !slices.Contains(seen, d.DeviceUUID) {
			indices, seen = append(indices, i), append(seen, d.DeviceUUID)
		}
	}
	if indices == nil {
		indices = []int{0, 0}
	}
	return indices
}

// openRanks makes a communicator with so many bytes of staging and of tensor a
// rank, in proxy ordering.
func (g *benchRig) openRanks(staging, tensor int64) {
	g.b.Helper()
	var err error
	g.ranks, err = Open(g.s.Adopted, g.s.Callbacks)
	must(g.b, err)
	must(g.b, g.ranks.ImportStaging(staging))
	must(g.b, g.ranks.AllocateScratch())
	must(g.b, g.ranks.Order(semaphores.Proxy))
	for r := range g.world {
		t, binding, err := g.ranks.DeviceBuffer(r, tensor/4)
		must(g.b, err)
		g.tensors, g.bindings = append(g.tensors, t), append(g.bindings, binding)
	}
}

// openOperands makes what verify needs for tensors of so many bytes.
func (g *benchRig) openOperands(tensor int64) {
	g.b.Helper()
	for r := range g.world {
		for _, list := range []*[]*Buffer{&g.operands, &g.spare} {
			host, _, err := g.ranks.HostBuffer(r, tensor/4)
			must(g.b, err)
			*list = append(*list, host)
		}
		fill := g.operands[r].Floats()
		for i := range fill {
			fill[i] = operandOf(r)
		}
	}
}

func (g *benchRig) closeRanks() {
	for _, list := range [][]*Buffer{g.tensors, g.operands, g.spare} {
		for _, b := range list {
			b.Close()
		}
	}
	g.tensors, g.bindings, g.operands, g.spare = nil, nil, nil, nil
	g.ranks.Close()
}

// orderings that the devices allow, best first.
func (g *benchRig) orderings() (kinds []string) {
	var devices []semaphores.Device
	for _, d := range g.ranks.Devices {
		devices = append(devices, semaphores.Device{DriverUUID: d.DriverUUID, Shareable: d.TimelineShareable})
	}
	chosen, why, err := semaphores.Choose(devices, semaphores.Auto)
	must(g.b, err)
	if why != "" {
		fmt.Printf("# native ordering is left out: %s\n", why)
	}
	for _, k := range chosen {
		kinds = append(kinds, string(k))
	}
	return kinds
}

// order takes an ordering into use; false where the devices refuse.
func (g *benchRig) order(kind string) bool {
	must(g.b, g.drain())
	if err := g.ranks.Order(semaphores.Kind(kind)); err != nil {
		fmt.Printf("# %s ordering is left out: %v\n", kind, err)
		return false
	}
	g.openRelay()
	return true
}

// openRelay takes the relay into use once there is an ordering, where the
// devices can do it.
func (g *benchRig) openRelay() {
	if g.ranks.HasRelay() {
		return
	}
	if err := g.ranks.OpenRelay(); err != nil {
		fmt.Printf("# the relay is left out: %v\n", err)
		return
	}
	g.ranks.SetRelayPatience(time.Second)
}

func (g *benchRig) drain() error {
	for r := range g.world {
		if err := g.drainRank(r); err != nil {
			return err
		}
	}
	return nil
}

func (g *benchRig) drainRank(rank int) error {
	ok, err := g.ranks.Drain(rank, drainTimeout)
	if err == nil && !ok {
		err = fmt.Errorf("rank %d did not finish in %v", rank, drainTimeout)
	}
	return err
}

// once runs a schedule and waits for it.
func (g *benchRig) once(s *allreduce.Schedule) {
	g.b.Helper()
	p, err := g.ranks.Program(s, g.bindings)
	must(g.b, err)
	must(g.b, g.ranks.Submit(p))
	must(g.b, g.drain())
	p.Close()
}

// zero makes the tensors +0.0, which reductions leave as it is.
func (g *benchRig) zero(elements int64) {
	g.b.Helper()
	s, err := allreduce.SingleShot(allreduce.Params{World: g.world, Elements: elements, Half: g.half,
		HalfBytes: g.ranks.HalfBytes(), ChunkBytes: g.ranks.ChunkBytes(), ZeroRanks: 1<<g.world - 1})
	must(g.b, err)
	g.once(s)
	g.half = (g.half + s.Rounds) % 2
}

// benchCase is one row of the table, and what it is measured with.
type benchCase struct {
	order, algorithm string
	wire             allreduce.Wire
	bytes, chunk     int64

	programs []*Program // by staging half
	time     timing
}

// prepare records the reduction for both staging halves.
func (g *benchRig) prepare(c *benchCase) error {
	for half := range 2 {
		s, err := allreduce.Build(c.algorithm, allreduce.Params{World: g.world, Elements: c.bytes / 4, Wire: c.wire, Half: half,
			HalfBytes: g.ranks.HalfBytes(), ChunkBytes: c.chunk, TransferQueue: g.ranks.TransferQueues()})
		if err != nil {
			return err
		}
		p, err := g.ranks.Program(s, g.bindings)
		must(g.b, err)
		c.programs = append(c.programs, p)
	}
	return nil
}

func (g *benchRig) submit(c *benchCase) error {
	if c.algorithm == allreduce.AlgorithmRelay && !g.ranks.RelayReady() {
		must(g.b, g.drain()) // as many in flight as there may be
	}
	p := c.programs[g.half]
	g.half = (g.half + p.Schedule.Rounds) % 2
	return g.ranks.Submit(p)
}

// operandOf is what every element of a rank's tensor is: all sums of these are
// exact on every wire.
func operandOf(rank int) float32 { return float32(rank + 1) }

// verify checks a reduction's sum on every rank, in a sample of the elements,
// and leaves the tensors zero.
func (g *benchRig) verify(b *testing.B, c *benchCase) {
	b.Helper()
	elements := c.bytes / 4
	for r := range g.world {
		from := Binding{Buffer: raw(g.operands[r].handle), Size: uint64(c.bytes)}
		must(b, g.ranks.Read(r, from, g.tensors[r], elements, drainTimeout))
	}
	must(b, g.submit(c))
	must(b, g.drain())
	want := float32(g.world*(g.world+1)) / 2
	for r := range g.world {
		must(b, g.ranks.Read(r, g.bindings[r], g.spare[r], elements, drainTimeout))
		sums := g.spare[r].Floats()[:elements]
		for i := int64(0); i < elements; i += 61 { // host-visible memory may be slow to read
			if sums[i] != want {
				b.Fatalf("%v: rank %d: element %d is %g, want %g", c, r, i, sums[i], want)
			}
		}
	}
	g.zero(elements)
}

// timing holds seconds an iteration, one value for each -count.
type timing struct {
	seconds, submits []float64 // submits: the part that the submitting thread was busy
	iterations       int
}

// run times b.N submissions and the wait for the last one. The framework calls
// it with rising b.N, from 1 on: the last call of each series is what counts.
func (t *timing) run(b *testing.B, submit, drain func() error) {
	b.ResetTimer()
	start := time.Now()
	for range b.N {
		must(b, submit())
	}
	submitted := time.Since(start)
	must(b, drain())
	took := time.Since(start)
	b.StopTimer()
	if b.N == 1 {
		t.seconds, t.submits = append(t.seconds, 0), append(t.submits, 0)
	}
	last := len(t.seconds) - 1
	t.seconds[last], t.submits[last] = took.Seconds()/float64(b.N), submitted.Seconds()/float64(b.N)
	t.iterations = b.N
}

func (t *timing) median() float64 { return median(t.seconds) }

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(v))
	return (sorted[(len(v)-1)/2] + sorted[len(v)/2]) / 2
}

// gigabytes a second, 10^9.
func gigabytes(bytes int64, seconds float64) float64 {
	if seconds == 0 {
		return 0
	}
	return float64(bytes) / seconds / 1e9
}
