package vkimpl

// #include "record.h"
import "C"

import (
	"unsafe"

	"ggmlvkcomm/allreduce"
)

// translate turns the steps of a batch into copies and dispatches.
func (p *Program) translate(b *allreduce.Batch, tensor Binding) ([]C.struct_vkcomm_step, error) {
	if p.goTogether(b, tensor) {
		step, err := p.dispatchStep(b.Rank, &b.Steps[1], &b.Steps[0], tensor)
		return []C.struct_vkcomm_step{step}, err
	}
	steps := make([]C.struct_vkcomm_step, len(b.Steps))
	for i := range b.Steps {
		s := &b.Steps[i]
		if s.Op == allreduce.Copy || b.Queue == allreduce.Transfer {
			steps[i] = p.copyStep(b.Rank, s, tensor)
			continue
		}
		var err error
		if steps[i], err = p.dispatchStep(b.Rank, s, nil, tensor); err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// goTogether reports whether a batch packs beside reducing, as a pipeline's do,
// and fits one kernel: its workgroups read and write by turns, and keep both
// directions of the link busy from the first to the last.
func (p *Program) goTogether(b *allreduce.Batch, tensor Binding) bool {
	if b.Queue != allreduce.Compute || len(b.Steps) != 2 {
		return false
	}
	pack, reduce := &b.Steps[0], &b.Steps[1]
	if pack.Op != allreduce.Pack || reduce.Op != allreduce.Reduce || reduce.Publish != nil {
		return false
	}
	return 2*max(pack.Count, reduce.Count) <= maxDispatch &&
		uint64(p.view(b.Rank, tensor, reduce, pack).bytes) <= p.ranks.Devices[b.Rank].limits.maxStorageRange
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

// dispatchStep translates a step into a kernel with its descriptors. beside,
// unless nil, is a Pack that the kernel of a Reduce without Publish does too.
func (p *Program) dispatchStep(rank int, s, beside *allreduce.Step, tensor Binding) (step C.struct_vkcomm_step, err error) {
	d := p.ranks.Devices[rank]
	k := kernelOf(rank, s, p.Schedule.Wire)
	view := p.view(rank, tensor, s)
	groups, push := groupsFor(s.Count), C.struct_vkcomm_push{count: C.uint32_t(s.Count)}
	if beside != nil {
		k.pack = 1
		view = p.view(rank, tensor, s, beside)
		groups = 2 * max(groups, groupsFor(beside.Count))
		push.pack_count, push.pack_offset = C.uint32_t(beside.Count), view.offsets[1]
	}
	push.tensor_offset = view.offsets[0]
	pipeline, err := d.pipeline(k)
	if err != nil {
		return step, err
	}
	set, err := d.takeSet()
	if err != nil {
		return step, err
	}
	p.sets[rank] = append(p.sets[rank], set)

	var sources []C.VkDescriptorBufferInfo
	sources, push.zero_sources = p.sources(rank, s, k, tensor)
	bound, to := view.bound.info(view.bytes), p.destination(rank, s, beside, tensor)
	C.vkcomm_write_set(d.vk, as[C.VkDescriptorSet](raw(set)), &bound, C.uint32_t(len(sources)), unsafe.SliceData(sources), &to)
	return C.struct_vkcomm_step{pipeline: as[C.VkPipeline](raw(pipeline)), set: as[C.VkDescriptorSet](raw(set)),
		groups: groups, push: push}, nil
}

func groupsFor(elements int64) C.uint32_t {
	return C.uint32_t((elements + elementsPerGroup - 1) / elementsPerGroup)
}

// sources are what a kernel reads beside the tensor, one for every rank, and
// which of its summands are zero.
func (p *Program) sources(rank int, s *allreduce.Step, k kernel, tensor Binding) (list []C.VkDescriptorBufferInfo, zero C.uint32_t) {
	if s.Op != allreduce.Pack {
		for i, region := range s.Srcs {
			if region.Space == allreduce.Zero {
				zero |= 1 << i
			}
			if uint32(i) != k.own {
				list = append(list, p.ranks.find(rank, region, tensor).info(p.Schedule.Wire.Bytes(s.Count)))
			}
		}
	}
	for len(list) < len(p.ranks.Devices) { // every descriptor of the binding valid all the same
		list = append(list, p.ranks.find(rank, allreduce.Region{Space: allreduce.Zero, Rank: rank}, tensor).info(allreduce.OffsetAlign))
	}
	return list, zero
}

// destination is what a kernel writes beside the tensor, or a valid descriptor.
func (p *Program) destination(rank int, s, beside *allreduce.Step, tensor Binding) C.VkDescriptorBufferInfo {
	to := allreduce.Region{Space: allreduce.Staging, Rank: rank}
	switch {
	case beside != nil:
		s, to = beside, beside.Dst
	case s.Op == allreduce.Pack:
		to = s.Dst
	case s.Publish != nil:
		to = *s.Publish
	}
	return p.ranks.find(rank, to, tensor).info(max(p.Schedule.Wire.Bytes(s.Count), allreduce.OffsetAlign))
}

// tensorView is the part of a tensor that is bound to a kernel.
type tensorView struct {
	bound   place
	bytes   int64
	offsets []C.uint32_t // in elements, of each step's slice
}

// view covers the slices of the tensor that steps work on.
func (p *Program) view(rank int, tensor Binding, steps ...*allreduce.Step) (v tensorView) {
	lowest, end := ^uint64(0), uint64(0)
	var at []uint64
	for _, s := range steps {
		slice := s.Dst
		if s.Op == allreduce.Pack {
			slice = s.Srcs[0]
		}
		from := p.ranks.find(rank, slice, tensor).offset
		at = append(at, from)
		lowest, end = min(lowest, from), max(end, from+4*uint64(s.Count))
	}
	bound, _ := p.ranks.Devices[rank].alignTensor(place{tensor.Buffer, lowest})
	for _, from := range at {
		v.offsets = append(v.offsets, C.uint32_t((from-bound.offset)/4))
	}
	v.bound, v.bytes = bound, int64(end-bound.offset)
	return v
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
