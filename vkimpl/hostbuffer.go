package vkimpl

// #include "executor.h"
// #include "record.h"
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	vk "github.com/goki/vulkan"

	"ggmlvkcomm/allreduce"
)

// HostBuffer makes a host-visible buffer of so many floats on rank's device and
// a binding of all of it.
func (r *Ranks) HostBuffer(rank int, floats int64) (*Buffer, Binding, error) {
	b, err := r.Devices[rank].newBuffer(4*floats, hostCoherent)
	if err != nil {
		return nil, Binding{}, err
	}
	return b, Binding{Buffer: raw(b.handle), Size: uint64(b.size)}, nil
}

// DeviceBuffer is HostBuffer in device-local memory, zeroed by nobody.
func (r *Ranks) DeviceBuffer(rank int, floats int64) (*Buffer, Binding, error) {
	b, err := r.Devices[rank].newBuffer(4*floats, vk.MemoryPropertyFlags(vk.MemoryPropertyDeviceLocalBit))
	if err != nil {
		return nil, Binding{}, err
	}
	return b, Binding{Buffer: raw(b.handle), Size: uint64(b.size)}, nil
}

// Read copies floats from a rank's tensor into to once all that was submitted
// before is complete, and waits for it. Slow: it is for verification.
func (r *Ranks) Read(rank int, from Binding, to *Buffer, floats int64, timeout time.Duration) error {
	return r.copyNow(rank, []C.struct_vkcomm_step{copyOf(from, to, 4*floats)}, timeout)
}

func copyOf(from Binding, to *Buffer, bytes int64) C.struct_vkcomm_step {
	return C.struct_vkcomm_step{copy_src: as[C.VkBuffer](from.Buffer), copy_dst: as[C.VkBuffer](raw(to.handle)),
		copy: C.VkBufferCopy{srcOffset: C.VkDeviceSize(from.Offset), size: C.VkDeviceSize(bytes)}}
}

// copyNow runs copies on a rank's compute queue, behind whatever it holds, and
// waits for them.
func (r *Ranks) copyNow(rank int, steps []C.struct_vkcomm_step, timeout time.Duration) error {
	d := r.Devices[rank]
	commands, err := d.takeCommands(allreduce.Compute)
	if err != nil {
		return err
	}
	free := &d.freeCommands[allreduce.Compute]
	defer func() { *free = append(*free, commands) }()
	result := C.vkcomm_record(d.vk, as[C.VkCommandBuffer](raw(commands)), nil,
		&C.struct_vkcomm_batch{reads_shared: true, writes_shared: true}, C.uint32_t(len(steps)), unsafe.SliceData(steps), 0, 0, nil,
		C.struct_vkcomm_stamps{})
	if err := check("recording a copy", rank, vk.Result(result)); err != nil {
		return err
	}
	p := C.vkcomm_program_new(1, 0)
	if p == nil {
		return fmt.Errorf("out of memory")
	}
	defer C.vkcomm_program_free(p)
	C.vkcomm_program_add(p, C.uint32_t(rank), 0, as[C.VkCommandBuffer](raw(commands)), 0, nil, C.struct_vkcomm_point{})
	if err := check("vkQueueSubmit", rank, vk.Result(C.vkcomm_executor_submit(r.c, p))); err != nil {
		return err
	}
	switch ok, err := r.Drain(rank, timeout); {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("rank %d did not finish in %v", rank, timeout)
	}
	return nil
}
