package vkimpl

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/semaphores"
)

// drainTimeout is ample: a pipeline is compiled at its first dispatch, which
// takes a software driver hundreds of milliseconds.
const drainTimeout = 60 * time.Second

// canary is what tensors hold outside the regions under test: a NaN that no
// arithmetic makes.
const canary = 0x7fabcdef

// openDevices makes world devices on the physical devices that have the driver
// of the first one, or skips the test.
func openDevices(t testing.TB, world int, options StandaloneOptions) *Standalone {
	t.Helper()
	probe, err := OpenStandalone(nil, options)
	if errors.Is(err, ErrNoVulkan) {
		t.Skipf("needs a Vulkan device, such as lavapipe (package mesa-vulkan-drivers): %v", err)
	}
	must(t, err)
	var alike, physical []int
	for i, d := range probe.Physical {
		if d.Driver == probe.Physical[0].Driver {
			alike = append(alike, i)
		}
	}
	probe.Close()
	for r := range world {
		physical = append(physical, alike[r%len(alike)])
	}
	s, err := OpenStandalone(physical, options)
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

// rig is a communicator with one host-visible tensor buffer a rank, in proxy
// ordering.
type rig struct {
	*Ranks
	t        testing.TB
	world    int
	buffers  []*Buffer
	bindings []Binding
	used     int64 // floats of the buffers that are taken
}

// openRig makes world ranks with staging of so many bytes and tensor buffers of
// so many floats. Where the device has no transfer queue, the compute queue
// plays one.
func openRig(t testing.TB, world int, staging, floats int64) *rig {
	t.Helper()
	s := openDevices(t, world, StandaloneOptions{AliasTransferQueue: true})
	ranks, err := Open(s.Adopted, s.Callbacks)
	must(t, err)
	g := &rig{Ranks: ranks, t: t, world: world}
	t.Cleanup(g.close)
	must(t, ranks.ImportStaging(staging))
	must(t, ranks.AllocateScratch())
	must(t, ranks.Order(semaphores.Proxy))
	for r := range world {
		b, binding, err := ranks.HostBuffer(r, floats)
		must(t, err)
		g.buffers, g.bindings = append(g.buffers, b), append(g.bindings, binding)
	}
	g.reset()
	return g
}

// eachOrdering calls f with every ordering that the devices can do: native is
// for drivers that share timelines, which lavapipe does not.
func (g *rig) eachOrdering(f func()) {
	g.t.Helper()
	var devices []semaphores.Device
	for _, d := range g.Devices {
		devices = append(devices, semaphores.Device{DriverUUID: d.DriverUUID, Shareable: d.TimelineShareable})
	}
	kinds, why, err := semaphores.Choose(devices, semaphores.Auto)
	must(g.t, err)
	if why != "" {
		g.t.Logf("not in native ordering: %s", why)
	}
	for _, kind := range kinds {
		must(g.t, g.Order(kind))
		f()
	}
}

func (g *rig) close() {
	g.drain() // a test that failed, or read one rank, has left work behind
	for _, b := range g.buffers {
		b.Close()
	}
	g.Ranks.Close()
}

// words is a rank's tensor buffer as bits.
func (g *rig) words(rank int) []uint32 {
	f := g.buffers[rank].Floats()
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(f))), len(f))
}

// reset fills the tensor buffers with canaries and gives all of them free.
func (g *rig) reset() {
	for r := range g.world {
		w := g.words(r)
		for i := range w {
			w[i] = canary
		}
	}
	g.used = 0
}

// take sets count floats of every rank's buffer aside, some distance behind the
// former ones, and returns bindings of them.
func (g *rig) take(count, distance int64) []Binding {
	bindings := slices.Clone(g.bindings)
	for r := range bindings {
		bindings[r].Offset = 4 * uint64(g.used+distance)
	}
	g.used += distance + count
	return bindings
}

// part is the memory of a binding.
func (g *rig) part(rank int, b Binding, count int64) []uint32 {
	return g.words(rank)[b.Offset/4:][:count]
}

// run submits schedules over their bindings, one behind the other, and waits
// for the end.
func (g *rig) run(seq []*allreduce.Schedule, bindings [][]Binding) {
	g.t.Helper()
	for i, s := range seq {
		p, err := g.Program(s, bindings[i])
		must(g.t, err)
		defer p.Close()
		must(g.t, g.Submit(p))
	}
	g.drain()
}

func (g *rig) drain() {
	g.t.Helper()
	for r := range g.world {
		ok, err := g.Drain(r, drainTimeout)
		must(g.t, err)
		if !ok {
			g.t.Fatalf("rank %d did not finish in %v", r, drainTimeout)
		}
	}
}

// step runs one step on one rank.
func (g *rig) step(rank int, wire allreduce.Wire, bindings []Binding, step allreduce.Step) {
	g.t.Helper()
	g.run([]*allreduce.Schedule{allreduce.ByHand(g.world, wire, g.HalfBytes(), allreduce.Only(rank, step))}, [][]Binding{bindings})
}

// move copies words between a rank's tensor and its staging as they are.
func (g *rig) move(rank int, words int64, to, from allreduce.Region, binding Binding) {
	g.t.Helper()
	bindings := slices.Clone(g.bindings)
	bindings[rank] = binding
	g.step(rank, allreduce.F32, bindings, allreduce.Step{Op: allreduce.Copy, Count: words, Dst: to, Srcs: []allreduce.Region{from}})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sameBits(a, b uint32) bool {
	x, y := math.Float32frombits(a), math.Float32frombits(b)
	return a == b || x != x && y != y
}

func bitsOf(v []float32) []uint32 {
	out := make([]uint32, len(v))
	for i, x := range v {
		out[i] = math.Float32bits(x)
	}
	return out
}

func floatsOf(v []uint32) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = math.Float32frombits(x)
	}
	return out
}

// expect fails at the first element whose bits differ; NaNs are alike.
func expect(t testing.TB, what string, got, want []uint32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !sameBits(got[i], want[i]) {
			t.Fatalf("%s: element %d of %d is %#08x (%g), want %#08x (%g)", what, i, len(got),
				got[i], math.Float32frombits(got[i]), want[i], math.Float32frombits(want[i]))
		}
	}
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 2)) }
