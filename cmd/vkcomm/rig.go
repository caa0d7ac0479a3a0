package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/plugin/choice"
	"ggmlvkcomm/semaphores"
	"ggmlvkcomm/vkimpl"
)

// drainTimeout bounds a wait for a queue: lavapipe compiles at the first
// dispatch, and takes seconds for large tensors.
const drainTimeout = 60 * time.Second

// rig is a communicator with a tensor a rank, and what it takes to check sums.
type rig struct {
	ranks    *vkimpl.Ranks
	world    int
	tensors  []*vkimpl.Buffer
	bindings []vkimpl.Binding
	host     []*vkimpl.Buffer // what tensors are filled from and read into
	hostAt   []vkimpl.Binding
	half     int    // staging half of the next round
	why      string // why native ordering is not used, if so
	noRelay  string // why there is no relay, if so
}

// openRig makes a communicator with so many bytes of staging and of tensor a
// rank, in the first of the orderings wanted that the devices allow.
func openRig(s *vkimpl.Standalone, adopted []vkimpl.Adopted, staging, tensor int64, want semaphores.Preference) (*rig, error) {
	ranks, err := vkimpl.Open(adopted, s.Callbacks)
	if err != nil {
		return nil, err
	}
	g := &rig{ranks: ranks, world: len(adopted)}
	if err = ranks.ImportStaging(staging); err == nil {
		err = ranks.AllocateScratch()
	}
	if err == nil {
		err = g.order(want)
	}
	for r := 0; r < g.world && err == nil; r++ {
		err = g.allocate(r, tensor/4)
	}
	if err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *rig) allocate(rank int, floats int64) error {
	t, binding, err := g.ranks.DeviceBuffer(rank, floats)
	if err != nil {
		return err
	}
	g.tensors, g.bindings = append(g.tensors, t), append(g.bindings, binding)
	h, at, err := g.ranks.ReadBuffer(rank, floats)
	if err != nil {
		return err
	}
	g.host, g.hostAt = append(g.host, h), append(g.hostAt, at)
	return nil
}

func (g *rig) close() {
	for _, list := range [][]*vkimpl.Buffer{g.tensors, g.host} {
		for _, b := range list {
			b.Close()
		}
	}
	g.ranks.Close()
}

// order takes the first ordering into use that the devices accept.
func (g *rig) order(want semaphores.Preference) error {
	var devices []semaphores.Device
	for _, d := range g.ranks.Devices {
		devices = append(devices, semaphores.Device{DriverUUID: d.DriverUUID, Shareable: d.TimelineShareable})
	}
	kinds, why, err := semaphores.Choose(devices, want)
	g.why = why
	for _, kind := range kinds {
		if err = g.ranks.Order(kind); err == nil {
			return nil
		}
		g.why = fmt.Sprintf("%s ordering: %v", kind, err)
	}
	return err
}

// openP2P moves the ranks' staging into device memory, where their peers can
// import it, and says why for those where not. Nothing may be in flight.
func (g *rig) openP2P() (moved []string, refused []string) {
	_, failures := g.ranks.OpenP2P()
	for rank := range g.world {
		moved = append(moved, g.ranks.StagingHandle(rank).String())
	}
	for _, f := range failures {
		refused = append(refused, f.Error())
	}
	return moved, refused
}

// openRelay takes the relay into use where the devices can do it, which only
// reductions show.
func (g *rig) openRelay() {
	if err := g.ranks.OpenRelay(); err != nil {
		g.noRelay = err.Error()
		return
	}
	g.ranks.SetRelayPatience(50 * time.Millisecond) // as plugin/selftest.go has it
	if err := g.testRelay(); err != nil {
		g.noRelay = "self-test: " + err.Error()
		g.ranks.CloseRelay()
		return
	}
	g.ranks.SetRelayPatience(5 * time.Second)
}

func (g *rig) testRelay() error {
	elements := min(257, int64(len(g.host[0].Floats())))
	w, err := g.reduction(allreduce.AlgorithmRelay, allreduce.F32, 4*elements, 0)
	if err != nil {
		return err
	}
	for round := range 4 {
		wrong, err := g.check(w, elements, round)
		if err != nil {
			return err // in use: leaked
		}
		if wrong > 0 {
			w.close()
			return fmt.Errorf("%d of %d elements are wrong", wrong, elements*int64(g.world))
		}
	}
	w.close()
	return nil
}

func (g *rig) drain() error {
	for r := range g.world {
		if err := g.drainRank(r); err != nil {
			return err
		}
	}
	return nil
}

func (g *rig) drainRank(rank int) error {
	ok, err := g.ranks.Drain(rank, drainTimeout)
	if err == nil && !ok {
		err = fmt.Errorf("rank %d did not finish in %v", rank, drainTimeout)
	}
	return err
}

// work is what can be done again and again, and timed.
type work interface {
	submit(g *rig) error
	close()
}

// reduction is one AllReduce, recorded for both staging halves.
type reduction struct {
	programs  [2]*vkimpl.Program
	algorithm string
	wire      allreduce.Wire
	bytes     int64
}

// transferQueues is the ranks whose copy queue writes for them.
func (g *rig) transferQueues() uint64 {
	return choice.CopyQueues(g.ranks.TransferQueues(), g.ranks.Vendors())
}

func (g *rig) reduction(algorithm string, wire allreduce.Wire, bytes int64, zero uint64) (*reduction, error) {
	r := &reduction{algorithm: algorithm, wire: wire, bytes: bytes}
	chunk := choice.ChunkBytes(algorithm, wire.Bytes(bytes/4), g.ranks.ChunkBytes())
	for half := range r.programs {
		s, err := allreduce.Build(algorithm, allreduce.Params{World: g.world, Elements: bytes / 4, Wire: wire, Half: half,
			HalfBytes: g.ranks.HalfBytes(), ChunkBytes: chunk, TransferQueue: g.transferQueues(), ZeroRanks: zero})
		if err == nil {
			r.programs[half], err = g.ranks.Program(s, g.bindings)
		}
		if err != nil {
			r.close()
			return nil, err
		}
	}
	return r, nil
}

func (r *reduction) submit(g *rig) error {
	p := r.programs[g.half]
	if r.algorithm != allreduce.AlgorithmRelay { // which has halves of its own
		g.half = (g.half + p.Schedule.Rounds) % 2
	}
	return g.ranks.Submit(p)
}

func (r *reduction) close() {
	for _, p := range r.programs {
		if p != nil {
			p.Close()
		}
	}
}

// measure returns the seconds that one submission takes, a value for each of so
// many iterations of aggregate submissions queued back to back, as a model's
// layers queue theirs. The time ends when every rank's queue is empty.
func (g *rig) measure(w work, warmup, iterations, aggregate int) ([]float64, error) {
	var seconds []float64
	for i := range warmup + iterations {
		start := time.Now()
		for range aggregate {
			if err := w.submit(g); err != nil {
				return nil, err
			}
		}
		if err := g.drain(); err != nil {
			return nil, err
		}
		if i >= warmup {
			seconds = append(seconds, time.Since(start).Seconds()/float64(aggregate))
		}
	}
	return seconds, nil
}

// operand of a rank: small integers, so that every sum and partial sum of up to
// 16 ranks is exact on every wire (BF16 has 8 bits) and in any order.
func operand(rank, i, round int) float32 { return float32((i*7+rank*13+round*5)%31 - 15) }

// fill uploads each rank's operand.
func (g *rig) fill(elements int64, round int) error {
	for r := range g.world {
		values := g.host[r].Floats()[:elements]
		for i := range values {
			values[i] = operand(r, i, round)
		}
		if err := g.ranks.Read(r, g.hostAt[r], g.tensors[r], elements, drainTimeout); err != nil {
			return err
		}
	}
	return nil
}

// check lets w reduce fresh operands and returns how many elements, of all
// ranks together, are not the sum.
func (g *rig) check(w work, elements int64, round int) (wrong int64, err error) {
	if err = g.fill(elements, round); err == nil {
		err = w.submit(g)
	}
	if err == nil {
		err = g.drain()
	}
	for r := 0; r < g.world && err == nil; r++ {
		if err = g.ranks.Read(r, g.bindings[r], g.host[r], elements, drainTimeout); err != nil {
			break
		}
		for i, got := range g.host[r].Floats()[:elements] {
			var sum float32
			for rank := range g.world {
				sum += operand(rank, i, round)
			}
			if math.Float32bits(got) != math.Float32bits(sum) {
				wrong++
			}
		}
	}
	return wrong, err
}

// clear makes the tensors zero, which reductions leave as they are: repeated
// sums of anything else would end in infinity.
func (g *rig) clear(elements int64) error {
	for r := range g.world {
		clear(g.host[r].Floats()[:elements])
		if err := g.ranks.Read(r, g.hostAt[r], g.tensors[r], elements, drainTimeout); err != nil {
			return err
		}
	}
	return nil
}

// ---- schedules by hand ----------------------------------------------------------

type step = allreduce.Step

// pieces calls f for consecutive parts that one step can do.
func (g *rig) pieces(bytes int64, f func(at, count int64)) {
	piece := min(bytes, g.ranks.ChunkBytes())
	for at := int64(0); at < bytes; at += piece {
		f(at, min(piece, bytes-at)/4)
	}
}

// transfer is one program that waits for nothing.
type transfer struct{ program *vkimpl.Program }

func (t *transfer) submit(g *rig) error { return g.ranks.Submit(t.program) }
func (t *transfer) close()              { t.program.Close() }

// record makes a transfer of steps.
func (g *rig) record(steps func(rank int) []allreduce.Step) (*transfer, error) {
	p, err := g.ranks.Program(allreduce.ByHand(g.world, allreduce.F32, g.ranks.HalfBytes(), steps), g.bindings)
	if err != nil {
		return nil, err
	}
	return &transfer{p}, nil
}

// link moves bytes between each rank's tensor and staging, all ranks at once:
// into its own, or out of that of the rank before it.
func (g *rig) link(bytes int64, write bool) (*transfer, error) {
	return g.record(func(rank int) (steps []allreduce.Step) {
		return g.linkSteps(rank, (rank+g.world-1)%g.world, bytes, write)
	})
}

func (g *rig) linkSteps(rank, owner int, bytes int64, write bool) (steps []allreduce.Step) {
	g.pieces(bytes, func(at, count int64) {
		if write {
			steps = append(steps, allreduce.Step{Op: allreduce.Pack, Count: count, Dst: allreduce.StagingAt(rank, at), Srcs: []allreduce.Region{allreduce.TensorAt(rank, at/4)}})
		} else {
			steps = append(steps, allreduce.Step{Op: allreduce.Unpack, Count: count, Dst: allreduce.TensorAt(rank, at/4), Srcs: []allreduce.Region{allreduce.StagingAt(owner, at)}})
		}
	})
	return steps
}

// stagingBytes is the largest transfer that link and butterfly can do.
func (g *rig) stagingBytes() int64 { return 2 * g.ranks.HalfBytes() }

// hop is how long a rank's kernel runs after the signal of its left neighbour
// that it waits for, that kernel included, which does next to nothing.
func (g *rig) hop(repeats int) (float64, error) {
	const few, many = 8, 40
	short, err := g.handOn(few, repeats)
	if err != nil {
		return 0, err
	}
	long, err := g.handOn(many, repeats)
	return max(0, long-short) / (many - few), err
}

// handOn times a chain of so many batches.
func (g *rig) handOn(batches, repeats int) (float64, error) {
	p, err := g.ranks.Program(allreduce.Chain(g.world, batches, g.ranks.HalfBytes()), g.bindings)
	if err != nil {
		return 0, err
	}
	t := &transfer{p}
	defer t.close()
	seconds, err := g.measure(t, 1, repeats, 1)
	return percentile(seconds, 50), err
}

// percentile by nearest rank; 0 of nothing.
func percentile(values []float64, percent int) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, (len(sorted)*percent+99)/100-1)]
}
