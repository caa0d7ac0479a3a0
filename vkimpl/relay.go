package vkimpl

// #include "executor.h"
// #include "record.h"
// #include "relay.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	vk "github.com/goki/vulkan"
	"golang.org/x/sys/unix"

	"ggmlvkcomm/allreduce"
)

// relay is what a communicator needs for relayed reductions: for each rank a
// slot in host memory, which its kernel writes, and an inbox in its own memory,
// which the host writes, both mapped.
type relay struct {
	slots, inboxes []*Buffer
	pages          [][]byte // mappings behind the slots
	pollsPerSecond float64  // of one word by one invocation, on the fastest rank
	spinBound      uint32   // of programs recorded from now on
}

const (
	// relayProbePolls is long enough to time a wait, microseconds a poll at most.
	relayProbePolls = 20000
	relayProbeLimit = 5 * time.Second // lavapipe compiles the kernel meanwhile
)

const inboxMemory = vk.MemoryPropertyFlags(vk.MemoryPropertyDeviceLocalBit | vk.MemoryPropertyHostVisibleBit | vk.MemoryPropertyHostCoherentBit)

// OpenRelay allocates slots and inboxes, times how fast kernels poll, and starts
// the threads. It needs an ordering in use, whose timelines tell when a kernel
// has ended. On an error the communicator is as before.
func (r *Ranks) OpenRelay() error {
	for _, d := range r.Devices {
		if d.OnCPU {
			// lavapipe 22.3 ends the loops of an invocation after 65535 rounds in
			// all, and its workgroups hold a thread of a shared pool each.
			return unsupported(d.rank, "is a software device, whose kernels cannot wait")
		}
	}
	r.relay = &relay{}
	err := r.allocateRelay()
	if err == nil {
		err = r.timeRelay()
	}
	if err == nil {
		err = r.startRelay()
	}
	switch {
	case errors.Is(err, errPolling):
		r.relay = nil // a kernel still uses the memory: leaked rather than freed
	case err != nil:
		r.CloseRelay()
	}
	return err
}

// errPolling: a kernel did not stop polling when it was to.
var errPolling = errors.New("does not stop polling its inbox")

// HasRelay reports whether OpenRelay succeeded.
func (r *Ranks) HasRelay() bool { return r.relay != nil && r.c.relay != nil }

// RelayBytes is what the relay takes of each rank: host memory for the slot and
// device memory, in the window that the host can write, for the inbox.
func (r *Ranks) RelayBytes() (host, device int64) {
	return r.relay.slots[0].size, r.relay.inboxes[0].size
}

// RelayCPUSeconds is the CPU time that the relay's threads have used so far.
func (r *Ranks) RelayCPUSeconds() float64 { return float64(C.vkcomm_relay_cpu_seconds(r.c.relay)) }

// SetRelayPatience bounds how long a kernel waits for a peer before the
// reduction has failed, in programs recorded from now on.
func (r *Ranks) SetRelayPatience(d time.Duration) {
	polls := d.Seconds() * r.relay.pollsPerSecond
	r.relay.spinBound = uint32(min(polls, 1<<32-1))
}

// RelayReady reports whether one more relayed reduction may be submitted: there
// is a bound to how many are in flight.
func (r *Ranks) RelayReady() bool { return bool(C.vkcomm_relay_ready(r.c.relay)) }

// RelayFailed reports whether a kernel has given up waiting.
func (r *Ranks) RelayFailed() bool { return bool(C.vkcomm_relay_has_failed(r.c.relay)) }

// CloseRelay ends the threads and frees the memory. No relayed reduction may be
// under way.
func (r *Ranks) CloseRelay() {
	if r.relay == nil {
		return
	}
	if r.c.relay != nil {
		C.vkcomm_relay_stop(r.c.relay)
		r.c.relay = nil
	}
	for _, b := range append(r.relay.slots, r.relay.inboxes...) {
		b.Close()
	}
	for _, mapping := range r.relay.pages {
		_ = unix.Munmap(mapping)
	}
	r.relay = nil
}

func (r *Ranks) allocateRelay() error {
	world := C.uint(len(r.Devices))
	for _, d := range r.Devices {
		memory, mapping, err := hostPages(int64(C.VKCOMM_RELAY_SLOT_BYTES), int64(d.limits.hostImportAlignment))
		if err != nil {
			return err
		}
		r.relay.pages = append(r.relay.pages, mapping)
		slot, err := d.importHost(memory)
		if err != nil {
			return fmt.Errorf("relay slot of rank %d: %w", d.rank, err)
		}
		slot.mapped = memory
		r.relay.slots = append(r.relay.slots, slot)
		if !slot.coherent { // the host would read what it has in its caches
			return fmt.Errorf("relay slot of rank %d: %w", d.rank, unsupported(d.rank, "imports host memory without coherence"))
		}
		inbox, err := d.newBuffer(relayStateOffset(world)+int64(C.VKCOMM_RELAY_STATE_BYTES), inboxMemory)
		if err != nil {
			return fmt.Errorf("relay inbox of rank %d: %w", d.rank, err)
		}
		r.relay.inboxes = append(r.relay.inboxes, inbox)
	}
	r.clearRelay()
	return nil
}

// relayStateOffset is where the counters lie behind a rank's inbox.
func relayStateOffset(world C.uint) int64 {
	return int64(world-1) * 2 * int64(C.VKCOMM_RELAY_ELEMENTS) * 8
}

// clearRelay makes the next reduction the first one.
func (r *Ranks) clearRelay() {
	for i := range r.relay.slots {
		clear(r.relay.slots[i].mapped)
		clear(r.relay.inboxes[i].mapped)
	}
}

// timeRelay lets every rank's kernel wait in vain for a bounded number of polls.
func (r *Ranks) timeRelay() error {
	r.relay.spinBound = relayProbePolls
	for range 2 { // the first run compiles, and its figure is forgotten
		r.relay.pollsPerSecond = 0
		for rank := range r.Devices {
			seconds, err := r.timePolls(rank)
			if err != nil {
				return err
			}
			r.relay.pollsPerSecond = max(r.relay.pollsPerSecond, relayProbePolls/seconds)
		}
		r.clearRelay()
	}
	return nil
}

// timePolls runs rank's kernel alone, on one element.
func (r *Ranks) timePolls(rank int) (seconds float64, err error) {
	buffer, binding, err := r.HostBuffer(rank, 1)
	if err != nil {
		return 0, err
	}
	p, err := r.newProgram(&allreduce.Schedule{Algorithm: allreduce.AlgorithmRelay, World: len(r.Devices), Elements: 1}, 1, 0)
	if err != nil {
		buffer.Close()
		return 0, err
	}
	err = p.addRelay(rank, binding)
	start := time.Now()
	if err == nil {
		err = r.Submit(p)
	}
	ok := true
	if err == nil {
		ok, err = r.Drain(rank, relayProbeLimit)
		seconds = time.Since(start).Seconds()
	}
	if !ok { // in use: leaked
		return 0, fmt.Errorf("rank %d: after %v it %w (%v)", rank, relayProbeLimit, errPolling, err)
	}
	p.Close()
	buffer.Close()
	return seconds, err
}

// relayLinger is how long a relay thread polls for the next reduction before it
// sleeps. A token's reductions are 110 to 200 us apart on two H200, and to wake
// a thread for each costs the host's thread 10 us (4 KiB: 17.6 us a call with
// sleeping threads, 7.2 with threads that were still awake).
const relayLinger = 300 * time.Microsecond

// relayLanes is how many threads a rank may have awake while tokens are
// generated on a machine of so many CPUs; 0: one, that sleeps at once. Half of
// the CPUs are left to the host and to what else runs there.
func relayLanes(world, cpus int) int {
	return min(cpus/(2*world), int(C.VKCOMM_RELAY_LANES))
}

func (r *Ranks) startRelay() error {
	var slots, inboxes []*C.uint64_t
	for i := range r.relay.slots {
		slots = append(slots, (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(r.relay.slots[i].mapped))))
		inboxes = append(inboxes, (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(r.relay.inboxes[i].mapped))))
	}
	host := C.struct_vkcomm_relay_host{failed: (*[0]byte)(C.vkcomm_executor_relay_failed), late: (*[0]byte)(C.vkcomm_executor_flush),
		context: unsafe.Pointer(r.c)}
	lanes := relayLanes(len(slots), runtime.NumCPU())
	if lanes > 0 {
		host.linger_ns = C.uint64_t(relayLinger)
	}
	r.c.relay = C.vkcomm_relay_start(C.uint(len(slots)), C.uint(max(lanes, 1)), unsafe.SliceData(slots), unsafe.SliceData(inboxes), &host)
	if r.c.relay == nil {
		return fmt.Errorf("no threads or memory for the relay")
	}
	return nil
}

// addRelay records rank's kernel and appends it to the submissions.
func (p *Program) addRelay(rank int, tensor Binding) error {
	d, r := p.ranks.Devices[rank], p.ranks
	commands, err := d.takeCommands(allreduce.Compute)
	if err != nil {
		return err
	}
	p.commands[rank][allreduce.Compute] = append(p.commands[rank][allreduce.Compute], commands)
	pipeline, err := d.pipeline(relayKernel(p.Schedule.World, rank, d.readsWordsWhole()))
	if err != nil {
		return err
	}
	set, err := d.takeSet()
	if err != nil {
		return err
	}
	p.sets[rank] = append(p.sets[rank], set)

	at, phase := d.alignTensor(place{tensor.Buffer, tensor.Offset})
	bound := at.info(int64(phase) + 4*p.Schedule.Elements)
	inbox, state := raw(r.relay.inboxes[rank].handle), relayStateOffset(C.uint(p.Schedule.World))
	words := []C.VkDescriptorBufferInfo{place{inbox, 0}.info(state), place{inbox, uint64(state)}.info(int64(C.VKCOMM_RELAY_STATE_BYTES))}
	for len(words) < len(r.Devices) { // every descriptor of the binding valid
		words = append(words, words[1])
	}
	slot := place{raw(r.relay.slots[rank].handle), 0}.info(r.relay.slots[rank].size)
	C.vkcomm_write_set(d.vk, as[C.VkDescriptorSet](raw(set)), &bound, C.uint32_t(len(words)), unsafe.SliceData(words), &slot)

	step := C.struct_vkcomm_step{
		pipeline: as[C.VkPipeline](raw(pipeline)), set: as[C.VkDescriptorSet](raw(set)), groups: C.VKCOMM_RELAY_GROUPS,
		push: C.struct_vkcomm_push{count: C.uint32_t(p.Schedule.Elements), tensor_offset: C.uint32_t(phase / 4),
			zero_sources: C.uint32_t(p.Schedule.ZeroRanks), spin_bound: C.uint32_t(r.relay.spinBound)}}
	result := C.vkcomm_record(d.vk, as[C.VkCommandBuffer](raw(commands)), as[C.VkPipelineLayout](raw(d.pipelineLayout)),
		&C.struct_vkcomm_batch{}, 1, &step, // words pass between devices while it runs, not at its ends
		0, 0, nil, p.nextStamps(rank, rank))
	if err := check("recording a command buffer", rank, vk.Result(result)); err != nil {
		return err
	}
	C.vkcomm_program_add(p.c, C.uint32_t(rank), 0, as[C.VkCommandBuffer](raw(commands)), 0, nil, C.struct_vkcomm_point{})
	return nil
}

// relayKernel is rank's kernel of a relayed reduction.
func relayKernel(world, rank int, wholeWords bool) kernel {
	k := kernel{shader: "relay_f32", sources: uint32(world), own: uint32(rank), peers: 2}
	if !wholeWords {
		k.publish = 1 // FENCE
	}
	return k
}

// readsWordsWhole: a volatile load of 8 aligned bytes is one access, done each
// time. So it is on NVIDIA (256 KiB checked on H200) and AMD, whose instruction
// sets load two registers at once; elsewhere the kernel does not rely on it.
func (d *Device) readsWordsWhole() bool {
	const amd, nvidia = 0x1002, 0x10de
	return d.VendorID == amd || d.VendorID == nvidia
}

// relayProgram records a relayed reduction on all ranks.
func (p *Program) relayProgram(bindings []Binding) error {
	if !p.ranks.HasRelay() {
		return fmt.Errorf("%w: no relay", ErrUnsupported)
	}
	for rank := range p.ranks.Devices {
		if err := p.addRelay(rank, bindings[rank]); err != nil {
			return err
		}
	}
	C.vkcomm_program_relay(p.c, C.uint32_t(p.Schedule.Elements))
	return nil
}
