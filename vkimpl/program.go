package vkimpl

// #include "executor.h"
// #include "record.h"
import "C"

import (
	"fmt"
	"unsafe"

	vk "github.com/goki/vulkan"

	"ggmlvkcomm/allreduce"
)

const pushBytes = uint32(C.sizeof_struct_vkcomm_push)

// Binding is one rank's tensor: bytes from Offset on in a VkBuffer of Size
// bytes on that rank's device. Offset is a multiple of 4.
type Binding struct {
	Buffer       uintptr
	Offset, Size uint64
}

// Program is a schedule bound to tensors and recorded into command buffers. It
// can be submitted any number of times, also while it is pending.
type Program struct {
	Schedule *allreduce.Schedule

	ranks    *Ranks
	c        *C.struct_vkcomm_program
	commands [][C.VKCOMM_QUEUES][]vk.CommandBuffer // by rank and queue, to give back
	sets     [][]vk.DescriptorSet                  // by rank
	trace    *trace                                // nil: none
}

// Program records a schedule. The tensors must stay where they are for as long
// as the program is submitted.
func (r *Ranks) Program(s *allreduce.Schedule, bindings []Binding) (*Program, error) {
	waits := 0
	for i := range s.Batches {
		waits += len(s.Batches[i].Waits)
	}
	p, err := r.newProgram(s, len(s.Batches), waits)
	if err != nil {
		return nil, err
	}
	if r.tracing {
		err = p.startTrace(max(len(s.Batches), 1)) // a relay has one a rank
	}
	switch {
	case err != nil:
	case s.Algorithm == allreduce.AlgorithmRelay:
		err = p.relayProgram(bindings)
	default:
		err = p.batches(bindings)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// newProgram has room for so many batches and waits.
func (r *Ranks) newProgram(s *allreduce.Schedule, batches, waits int) (*Program, error) {
	p := &Program{Schedule: s, ranks: r, commands: make([][C.VKCOMM_QUEUES][]vk.CommandBuffer, s.World), sets: make([][]vk.DescriptorSet, s.World)}
	if p.c = C.vkcomm_program_new(C.uint32_t(batches), C.uint32_t(waits)); p.c == nil {
		return nil, fmt.Errorf("out of memory for %d batches", batches)
	}
	return p, nil
}

func (p *Program) batches(bindings []Binding) error {
	for i := range p.Schedule.Batches {
		if err := p.add(i, bindings); err != nil {
			return err
		}
	}
	for rank, values := range p.Schedule.Signals {
		for queue, n := range values {
			C.vkcomm_program_advance(p.c, C.uint32_t(rank), C.uint32_t(queue), C.uint64_t(n))
		}
	}
	return nil
}

// Submit puts the program behind whatever the ranks' queues hold. An error
// means that nothing was submitted; a failure later on ends the process.
func (r *Ranks) Submit(p *Program) error {
	if result := C.vkcomm_executor_submit(r.c, p.c); result != C.VK_SUCCESS {
		return check("vkQueueSubmit", 0, vk.Result(result))
	}
	return nil
}

// Close gives the program's command buffers and descriptor sets back. It must
// not be pending.
func (p *Program) Close() {
	for rank, d := range p.ranks.Devices {
		for queue, commands := range p.commands[rank] {
			d.freeCommands[queue] = append(d.freeCommands[queue], commands...)
		}
		d.freeSets = append(d.freeSets, p.sets[rank]...)
	}
	p.closeTrace()
	C.vkcomm_program_free(p.c)
	p.c = nil
}

// add records the batch at index and appends it to the submissions.
func (p *Program) add(index int, bindings []Binding) error {
	b := &p.Schedule.Batches[index]
	d := p.ranks.Devices[b.Rank]
	var commands vk.CommandBuffer // none where there is nothing to do but signal
	if len(b.Steps) > 0 {
		var err error
		if commands, err = p.record(index, bindings[b.Rank]); err != nil {
			return err
		}
	}
	var waits []C.struct_vkcomm_point
	for _, w := range b.Waits {
		waits = append(waits, C.struct_vkcomm_point{
			semaphore: p.ranks.seen(b.Rank, w.Point),
			rank:      C.uint32_t(w.Rank), queue: C.uint32_t(w.Queue), value: C.int64_t(w.Value)})
	}
	signal := C.struct_vkcomm_point{semaphore: p.ranks.c.timeline[b.Rank][b.Queue],
		rank: C.uint32_t(b.Rank), queue: C.uint32_t(b.Queue), value: C.int64_t(b.Signal)}
	C.vkcomm_program_add(p.c, C.uint32_t(d.rank), C.uint32_t(b.Queue), as[C.VkCommandBuffer](raw(commands)),
		C.uint32_t(len(waits)), unsafe.SliceData(waits), signal)
	return nil
}

// seen is the semaphore on which rank waits for a point.
func (r *Ranks) seen(rank int, point allreduce.Point) C.VkSemaphore {
	if point.Rank == rank {
		return r.c.timeline[rank][point.Queue]
	}
	return as[C.VkSemaphore](uintptr(r.ordering.View(rank, point.Rank, int(point.Queue))))
}

func (p *Program) record(index int, tensor Binding) (vk.CommandBuffer, error) {
	b := &p.Schedule.Batches[index]
	d := p.ranks.Devices[b.Rank]
	commands, err := d.takeCommands(b.Queue)
	if err != nil {
		return nil, err
	}
	p.commands[b.Rank][b.Queue] = append(p.commands[b.Rank][b.Queue], commands)
	steps := make([]C.struct_vkcomm_step, len(b.Steps))
	for i := range b.Steps {
		s := &b.Steps[i]
		if s.Op == allreduce.Copy || b.Queue == allreduce.Transfer {
			steps[i] = p.copyStep(b.Rank, s, tensor)
		} else if steps[i], err = p.dispatchStep(b.Rank, s, tensor); err != nil {
			return nil, err
		}
	}
	shared := p.ranks.shared(b, p.Schedule.Wire)
	around := barriersAround(b)
	result := C.vkcomm_record(d.vk, as[C.VkCommandBuffer](raw(commands)), as[C.VkPipelineLayout](raw(d.pipelineLayout)),
		&around, C.uint32_t(len(steps)), unsafe.SliceData(steps), C.uint32_t(d.family(b.Queue)), C.uint32_t(len(shared)), unsafe.SliceData(shared),
		p.nextStamps(b.Rank, index))
	return commands, check("recording a command buffer", b.Rank, vk.Result(result))
}

// barriersAround says what a batch's barriers have to cover beside the queue's
// own work: staging, which other devices write and read.
func barriersAround(b *allreduce.Batch) (c C.struct_vkcomm_batch) {
	c.copies_only = b.Queue == allreduce.Transfer
	for _, s := range b.Steps {
		for _, source := range s.Srcs {
			c.reads_shared = c.reads_shared || source.Space == allreduce.Staging
		}
		c.writes_shared = c.writes_shared || s.Dst.Space == allreduce.Staging || s.Publish != nil && s.Publish.Space == allreduce.Staging
	}
	return c
}

// place is where a region lies as seen from a rank's device.
type place struct {
	buffer uintptr
	offset uint64 // bytes
}

// find locates a region for rank. A Zero region gets the start of that rank's
// staging: it is not read, but a descriptor must be valid.
func (r *Ranks) find(rank int, region allreduce.Region, tensor Binding) place {
	switch region.Space {
	case allreduce.Tensor:
		return place{tensor.Buffer, tensor.Offset + 4*uint64(region.Offset)}
	case allreduce.Scratch:
		return place{raw(r.scratch[rank].handle), uint64(region.Offset)}
	case allreduce.Zero:
		return place{raw(r.staging[rank][region.Rank].handle), 0}
	default:
		return place{raw(r.staging[rank][region.Rank].handle), uint64(region.Offset)}
	}
}

func (at place) info(bytes int64) C.VkDescriptorBufferInfo {
	return C.VkDescriptorBufferInfo{buffer: as[C.VkBuffer](at.buffer), offset: C.VkDeviceSize(at.offset), _range: C.VkDeviceSize(bytes)}
}

// copyStep translates a step that moves bytes as they are: Copy, and with an
// F32 wire Pack and Unpack on a transfer queue.
func (p *Program) copyStep(rank int, s *allreduce.Step, tensor Binding) C.struct_vkcomm_step {
	from, to := p.ranks.find(rank, s.Srcs[0], tensor), p.ranks.find(rank, s.Dst, tensor)
	return C.struct_vkcomm_step{
		copy_src: as[C.VkBuffer](from.buffer), copy_dst: as[C.VkBuffer](to.buffer),
		copy: C.VkBufferCopy{srcOffset: C.VkDeviceSize(from.offset), dstOffset: C.VkDeviceSize(to.offset),
			size: C.VkDeviceSize(p.Schedule.Wire.Bytes(s.Count))}}
}

// dispatchStep translates a step into a kernel with its descriptors.
func (p *Program) dispatchStep(rank int, s *allreduce.Step, tensor Binding) (C.struct_vkcomm_step, error) {
	d, bytes := p.ranks.Devices[rank], p.Schedule.Wire.Bytes(s.Count)
	k := kernelOf(rank, s, p.Schedule.Wire)
	pipeline, err := d.pipeline(k)
	if err != nil {
		return C.struct_vkcomm_step{}, err
	}
	set, err := d.takeSet()
	if err != nil {
		return C.struct_vkcomm_step{}, err
	}
	p.sets[rank] = append(p.sets[rank], set)

	operand, destination := s.Dst, allreduce.Region{Space: allreduce.Staging, Rank: rank}
	var zero uint32
	var peers []C.VkDescriptorBufferInfo
	if s.Op == allreduce.Pack {
		operand, destination = s.Srcs[0], s.Dst
	} else {
		for i, region := range s.Srcs {
			if region.Space == allreduce.Zero {
				zero |= 1 << i
			}
			if uint32(i) != k.own {
				peers = append(peers, p.ranks.find(rank, region, tensor).info(bytes))
			}
		}
		if s.Publish != nil {
			destination = *s.Publish
		}
	}
	for len(peers) < len(p.ranks.Devices) { // every descriptor of the binding valid all the same
		peers = append(peers, p.ranks.find(rank, allreduce.Region{Space: allreduce.Zero, Rank: rank}, tensor).info(allreduce.OffsetAlign))
	}
	to := p.ranks.find(rank, destination, tensor).info(max(bytes, allreduce.OffsetAlign))
	at, phase := d.alignTensor(p.ranks.find(rank, operand, tensor))
	bound := at.info(int64(phase) + 4*s.Count)
	C.vkcomm_write_set(d.vk, as[C.VkDescriptorSet](raw(set)), &bound, C.uint32_t(len(peers)), unsafe.SliceData(peers), &to)

	return C.struct_vkcomm_step{
		pipeline: as[C.VkPipeline](raw(pipeline)), set: as[C.VkDescriptorSet](raw(set)),
		groups: C.uint32_t((s.Count + elementsPerGroup - 1) / elementsPerGroup),
		push: C.struct_vkcomm_push{count: C.uint32_t(s.Count), tensor_offset: C.uint32_t(phase / 4),
			zero_sources: C.uint32_t(zero)},
	}, nil
}

// alignTensor moves a place down to where a storage buffer may be bound; phase
// is the distance in bytes, a multiple of 4.
func (d *Device) alignTensor(at place) (bound place, phase uint64) {
	phase = at.offset % d.limits.offsetAlignment
	at.offset -= phase
	return at, phase
}

// kernelOf is the kernel that does a step on rank.
func kernelOf(rank int, s *allreduce.Step, wire allreduce.Wire) kernel {
	if s.Op == allreduce.Pack {
		return kernel{shader: "pack_" + wire.String()}
	}
	n := uint32(len(s.Srcs))
	k := kernel{shader: "reduce_" + wire.String(), sources: n, own: n, peers: n}
	for i, region := range s.Srcs {
		if region.Rank == rank && (region.Space == allreduce.Tensor || region.Space == allreduce.Zero) {
			k.own, k.peers = uint32(i), n-1
		}
	}
	k.peers = max(k.peers, 1)
	if s.Publish != nil {
		k.publish = 1
	}
	return k
}
