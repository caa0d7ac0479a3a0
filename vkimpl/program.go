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
	commands [][]vk.CommandBuffer // by rank, to give back
	sets     [][]vk.DescriptorSet
}

// Program records a schedule. The tensors must stay where they are for as long
// as the program is submitted.
func (r *Ranks) Program(s *allreduce.Schedule, bindings []Binding) (*Program, error) {
	waits := 0
	for i := range s.Batches {
		waits += len(s.Batches[i].Waits)
	}
	p := &Program{Schedule: s, ranks: r, commands: make([][]vk.CommandBuffer, s.World), sets: make([][]vk.DescriptorSet, s.World)}
	if p.c = C.vkcomm_program_new(C.uint32_t(len(s.Batches)), C.uint32_t(waits)); p.c == nil {
		return nil, fmt.Errorf("out of memory for %d batches", len(s.Batches))
	}
	r.live++
	for i := range s.Batches {
		if err := p.add(&s.Batches[i], bindings); err != nil {
			p.Close()
			return nil, err
		}
	}
	for rank, values := range s.Signals {
		for queue, n := range values {
			C.vkcomm_program_advance(p.c, C.uint32_t(rank), C.uint32_t(queue), C.uint64_t(n))
		}
	}
	return p, nil
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
		d.freeCommands = append(d.freeCommands, p.commands[rank]...)
		d.freeSets = append(d.freeSets, p.sets[rank]...)
	}
	C.vkcomm_program_free(p.c)
	p.c = nil
	p.ranks.live--
}

// add records a batch and appends it to the submissions.
func (p *Program) add(b *allreduce.Batch, bindings []Binding) error {
	d := p.ranks.Devices[b.Rank]
	var commands vk.CommandBuffer // none where there is nothing to do but signal
	if len(b.Steps) > 0 {
		var err error
		if commands, err = p.record(b, bindings[b.Rank]); err != nil {
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
	return as[C.VkSemaphore](uintptr(r.ordering.View(rank, point.Rank)))
}

func (p *Program) record(b *allreduce.Batch, tensor Binding) (vk.CommandBuffer, error) {
	d := p.ranks.Devices[b.Rank]
	commands, err := d.takeCommands()
	if err != nil {
		return nil, err
	}
	p.commands[b.Rank] = append(p.commands[b.Rank], commands)
	steps := make([]C.struct_vkcomm_step, len(b.Steps))
	for i := range b.Steps {
		if err := p.step(&steps[i], b.Rank, &b.Steps[i], tensor); err != nil {
			return nil, err
		}
	}
	result := C.vkcomm_record(d.vk, as[C.VkCommandBuffer](raw(commands)), as[C.VkPipelineLayout](raw(d.pipelineLayout)),
		C.uint32_t(len(steps)), unsafe.SliceData(steps))
	return commands, check("recording a command buffer", b.Rank, vk.Result(result))
}

// step translates one step of a schedule into a dispatch.
func (p *Program) step(out *C.struct_vkcomm_step, rank int, s *allreduce.Step, tensor Binding) error {
	d, wire := p.ranks.Devices[rank], p.Schedule.Wire
	k, sources := kernelOf(rank, s)
	pipeline, err := d.pipeline(k)
	if err != nil {
		return err
	}
	set, err := d.takeSet()
	if err != nil {
		return err
	}
	p.sets[rank] = append(p.sets[rank], set)

	var zero uint32
	var peers []C.VkDescriptorBufferInfo
	for i, region := range sources {
		if region.Space == allreduce.Zero {
			zero |= 1 << i
		}
		if uint32(i) != k.own {
			peers = append(peers, p.ranks.stagingInfo(rank, region, wire.Bytes(s.Count)))
		}
	}
	// A kernel that publishes nothing has the binding all the same.
	destination := p.ranks.stagingInfo(rank, allreduce.Region{Space: allreduce.Staging, Rank: rank}, allreduce.OffsetAlign)
	tensorRegion := s.Dst
	switch {
	case s.Op == allreduce.Pack:
		destination, tensorRegion = p.ranks.stagingInfo(rank, s.Dst, wire.Bytes(s.Count)), s.Srcs[0]
	case s.Publish != nil:
		destination = p.ranks.stagingInfo(rank, *s.Publish, wire.Bytes(s.Count))
	}
	offset := tensor.Offset + 4*uint64(tensorRegion.Offset)
	start := offset / d.limits.offsetAlignment * d.limits.offsetAlignment
	bound := C.VkDescriptorBufferInfo{buffer: as[C.VkBuffer](tensor.Buffer), offset: C.VkDeviceSize(start),
		_range: C.VkDeviceSize(offset - start + 4*uint64(s.Count))}
	C.vkcomm_write_set(d.vk, as[C.VkDescriptorSet](raw(set)), &bound, C.uint32_t(len(peers)), unsafe.SliceData(peers), &destination)

	*out = C.struct_vkcomm_step{
		pipeline: as[C.VkPipeline](raw(pipeline)), set: as[C.VkDescriptorSet](raw(set)),
		groups: C.uint32_t((s.Count + workgroup - 1) / workgroup),
		push: C.struct_vkcomm_push{count: C.uint32_t(s.Count), tensor_offset: C.uint32_t((offset - start) / 4),
			zero_sources: C.uint32_t(zero)},
	}
	return nil
}

// kernelOf is the kernel that does a step on rank, and what it reads.
func kernelOf(rank int, s *allreduce.Step) (kernel, []allreduce.Region) {
	if s.Op == allreduce.Pack {
		return kernel{shader: shaderPackF32}, nil
	}
	k := kernel{shader: shaderReduceF32, sources: uint32(len(s.Srcs)), own: uint32(len(s.Srcs)), peers: uint32(len(s.Srcs))}
	for i, region := range s.Srcs {
		own := region.Space == allreduce.Tensor || region.Space == allreduce.Zero
		if own && region.Rank == rank {
			k.own, k.peers = uint32(i), k.peers-1
		}
	}
	if s.Publish != nil {
		k.publish = 1
	}
	return k, s.Srcs
}

// stagingInfo binds a region of some rank's staging on the device of rank. A
// Zero region is bound to that staging's start: it is not read, but a
// descriptor must be valid.
func (r *Ranks) stagingInfo(rank int, region allreduce.Region, bytes int64) C.VkDescriptorBufferInfo {
	b := r.staging[rank][region.Rank]
	offset := region.Offset
	if region.Space == allreduce.Zero {
		offset = 0
	}
	return C.VkDescriptorBufferInfo{buffer: as[C.VkBuffer](raw(b.handle)), offset: C.VkDeviceSize(offset), _range: C.VkDeviceSize(bytes)}
}
