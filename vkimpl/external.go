package vkimpl

// #include "external.h"
import "C"

import (
	"fmt"

	vk "github.com/goki/vulkan"
	"golang.org/x/sys/unix"
)

var handleBits = map[Handle]C.VkExternalMemoryHandleTypeFlagBits{
	OpaqueFD: C.VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
	DMABuf:   C.VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT,
}

// sharer asks the device what it can share.
func (d *Device) sharer() sharer {
	s := sharer{deviceUUID: d.DeviceUUID, driverUUID: d.DriverUUID, memoryFD: d.adopted.ExternalMemoryFD, dmaBuf: d.adopted.DMABuf}
	for h, bit := range handleBits {
		o := C.vkcomm_external_query(as[C.VkInstance](d.adopted.Instance), d.vk.physical_device,
			as[C.PFN_vkGetInstanceProcAddr](d.adopted.GetInstanceProcAddr), C.VkBufferUsageFlags(bufferUsage), bit)
		s.offers[h] = offer{bool(o.exportable), bool(o.importable), bool(o.dedicated_only)}
	}
	return s
}

// exported is a buffer and what an import must know of its memory.
type exported struct {
	*Buffer
	external C.struct_vkcomm_external
}

// exportable makes a buffer in device-local memory that can be exported as h.
func (d *Device) exportable(size int64, h Handle, dedicated bool) (*exported, error) {
	e, err := d.external(size, h, dedicated)
	if err != nil {
		return nil, err
	}
	index, _, err := d.memoryType(e.handle, ^uint32(0), vk.MemoryPropertyFlags(vk.MemoryPropertyDeviceLocalBit))
	if err == nil {
		e.external._type = C.uint32_t(index)
		err = e.place(nil)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	e.counts = uint64(e.external.bytes)
	d.deviceBytes += e.counts
	return e, nil
}

// external makes a buffer without memory.
func (d *Device) external(size int64, h Handle, dedicated bool) (*exported, error) {
	var made C.struct_vkcomm_external
	result := C.vkcomm_external_create(d.vk.device, d.getProcAddr(), C.VkDeviceSize(size), C.VkBufferUsageFlags(bufferUsage), handleBits[h], &made)
	if err := check("vkCreateBuffer for "+h.String(), d.rank, vk.Result(result)); err != nil {
		return nil, err
	}
	made.dedicated = made.dedicated || C.bool(dedicated)
	return &exported{&Buffer{device: d, handle: as[vk.Buffer](raw(made.buffer)), size: size}, made}, nil
}

// place gives the buffer its memory. fd nil: memory of its own, to be exported.
func (e *exported) place(fd *C.int) error {
	d, op := e.device, "vkAllocateMemory to export"
	if fd != nil {
		op = "vkAllocateMemory to import"
	}
	result := C.vkcomm_external_allocate(d.vk.device, d.getProcAddr(), fd, &e.external)
	e.memory = as[vk.DeviceMemory](raw(e.external.memory))
	return check(op, d.rank, vk.Result(result))
}

// importFrom makes a buffer on d of another device's memory.
func (d *Device) importFrom(from *exported, dedicated bool) (*Buffer, error) {
	var fd C.int
	result := C.vkcomm_external_export(from.device.vk, &from.external, &fd)
	if err := check("vkGetMemoryFdKHR", from.device.rank, vk.Result(result)); err != nil {
		return nil, err
	}
	return d.importDescriptor(from, int(fd), dedicated)
}

// importDescriptor is importFrom with the descriptor at hand, which the driver
// takes over or which is closed.
func (d *Device) importDescriptor(from *exported, descriptor int, dedicated bool) (*Buffer, error) {
	fd := C.int(descriptor)
	var before unix.Stat_t
	if err := unix.Fstat(descriptor, &before); err != nil {
		return nil, fmt.Errorf("descriptor %d of exported memory: %w", descriptor, err)
	}
	defer func() {
		if fd >= 0 && isStill(descriptor, &before) {
			_ = unix.Close(descriptor)
		}
	}()
	h := OpaqueFD
	if from.external.handle_type != handleBits[h] {
		h = DMABuf
	}
	e, err := d.external(from.size, h, dedicated)
	if err != nil {
		return nil, err
	}
	if err = e.suit(from, fd); err == nil {
		err = e.place(&fd)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e.Buffer, nil
}

// isStill reports whether a descriptor is open on the same file as before. A
// failed import leaves it to us, but lavapipe 22.3 closes it then as well, and by
// now another thread may have been given its number.
func isStill(descriptor int, before *unix.Stat_t) bool {
	var now unix.Stat_t
	return unix.Fstat(descriptor, &now) == nil && now.Dev == before.Dev && now.Ino == before.Ino
}

// suit decides on type and size of an import. For OPAQUE_FD they are those of the
// export (VUID-VkMemoryAllocateInfo-allocationSize-01742).
func (e *exported) suit(from *exported, fd C.int) error {
	if e.external.bytes > from.external.bytes {
		return unsupported(e.device.rank, "needs %d bytes for an import of %d", e.external.bytes, from.external.bytes)
	}
	e.external.bytes, e.external._type = from.external.bytes, from.external._type
	if e.external.handle_type == handleBits[OpaqueFD] {
		e.external.dedicated = from.external.dedicated
		return nil
	}
	var types C.uint32_t
	result := C.vkcomm_external_fd_types(e.device.vk, e.external.handle_type, fd, &types)
	if err := check("vkGetMemoryFdPropertiesKHR", e.device.rank, vk.Result(result)); err != nil {
		return err
	}
	index, err := importType(uint32(e.external.type_bits), uint32(types))
	e.external._type = C.uint32_t(index)
	return err
}
