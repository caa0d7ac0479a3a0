package vkimpl

// #include "executor.h"
import "C"

import (
	"fmt"
	"unsafe"

	vk "github.com/goki/vulkan"
	"golang.org/x/sys/unix"
)

// Buffer is a VkBuffer with memory of its own.
type Buffer struct {
	device *Device
	handle vk.Buffer
	memory vk.DeviceMemory
	size   int64
	mapped []byte // nil unless host-visible
	counts uint64 // what it adds to the device's deviceBytes

	coherent bool // of an import: the host sees what the device writes
}

const bufferUsage = vk.BufferUsageFlags(vk.BufferUsageStorageBufferBit | vk.BufferUsageTransferSrcBit | vk.BufferUsageTransferDstBit)

const hostCoherent = vk.MemoryPropertyFlags(vk.MemoryPropertyHostVisibleBit | vk.MemoryPropertyHostCoherentBit)

// newBuffer makes a buffer of size bytes in the first memory type that has all
// of flags; a host-visible one is mapped.
func (d *Device) newBuffer(size int64, flags vk.MemoryPropertyFlags) (*Buffer, error) {
	b, err := d.bareBuffer(size, nil)
	if err != nil {
		return nil, err
	}
	index, need, err := d.memoryType(b.handle, ^uint32(0), flags)
	if err == nil {
		err = b.allocate(index, need, nil)
	}
	if err == nil && flags&vk.MemoryPropertyFlags(vk.MemoryPropertyHostVisibleBit) != 0 {
		err = b.mapMemory()
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	b.counts = uint64(need)
	d.deviceBytes += b.counts
	return b, nil
}

// bareBuffer makes a buffer without memory; next is its pNext.
func (d *Device) bareBuffer(size int64, next unsafe.Pointer) (*Buffer, error) {
	info := vk.BufferCreateInfo{SType: vk.StructureTypeBufferCreateInfo, PNext: next, Size: vk.DeviceSize(size), Usage: bufferUsage}
	defer info.Free()
	var handle vk.Buffer
	if err := check("vkCreateBuffer", d.rank, vk.CreateBuffer(d.handle, &info, nil, &handle)); err != nil {
		return nil, err
	}
	return &Buffer{device: d, handle: handle, size: size}, nil
}

// memoryType returns the first type among allowed that suits the buffer and has
// all of flags, and the bytes that the buffer needs.
func (d *Device) memoryType(buffer vk.Buffer, allowed uint32, flags vk.MemoryPropertyFlags) (uint32, vk.DeviceSize, error) {
	var need vk.MemoryRequirements
	vk.GetBufferMemoryRequirements(d.handle, buffer, &need)
	need.Deref()
	defer need.Free()
	for i, t := range d.types {
		if allowed&need.MemoryTypeBits&(1<<i) != 0 && t.PropertyFlags&flags == flags {
			return uint32(i), need.Size, nil
		}
	}
	return 0, 0, unsupported(d.rank, "has no memory type with flags %#x among %#x", flags, allowed&need.MemoryTypeBits)
}

func (b *Buffer) allocate(index uint32, size vk.DeviceSize, next unsafe.Pointer) error {
	info := vk.MemoryAllocateInfo{SType: vk.StructureTypeMemoryAllocateInfo, PNext: next, AllocationSize: size, MemoryTypeIndex: index}
	defer info.Free()
	d := b.device
	var memory vk.DeviceMemory
	if err := check("vkAllocateMemory", d.rank, vk.AllocateMemory(d.handle, &info, nil, &memory)); err != nil {
		return err
	}
	b.memory = memory
	return check("vkBindBufferMemory", d.rank, vk.BindBufferMemory(d.handle, b.handle, b.memory, 0))
}

func (b *Buffer) mapMemory() error {
	var p unsafe.Pointer
	if err := check("vkMapMemory", b.device.rank, vk.MapMemory(b.device.handle, b.memory, 0, vk.DeviceSize(vk.WholeSize), 0, &p)); err != nil {
		return err
	}
	b.mapped = unsafe.Slice((*byte)(p), b.size)
	return nil
}

// Floats is the mapped memory of a host-visible buffer.
func (b *Buffer) Floats() []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b.mapped))), b.size/4)
}

// Close frees the buffer. No queue may use it any more.
func (b *Buffer) Close() {
	if b == nil {
		return
	}
	b.device.deviceBytes -= b.counts
	vk.DestroyBuffer(b.device.handle, b.handle, nil)
	if b.memory != vk.NullDeviceMemory {
		vk.FreeMemory(b.device.handle, b.memory, nil)
	}
}

// importHost makes a buffer of the pages at memory, which stay the caller's.
func (d *Device) importHost(memory []byte) (*Buffer, error) {
	external := vk.ExternalMemoryBufferCreateInfo{SType: vk.StructureTypeExternalMemoryBufferCreateInfo,
		HandleTypes: vk.ExternalMemoryHandleTypeFlags(vk.ExternalMemoryHandleTypeHostAllocationBit)}
	ref, _ := external.PassRef()
	defer external.Free()
	b, err := d.bareBuffer(int64(len(memory)), unsafe.Pointer(ref))
	if err != nil {
		return nil, err
	}
	if err := b.importMemory(memory); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *Buffer) importMemory(memory []byte) error {
	d := b.device
	var bits C.uint32_t
	pointer := unsafe.Pointer(unsafe.SliceData(memory))
	result := C.vkcomm_vk_host_memory_types(d.vk, pointer, &bits)
	if err := check("vkGetMemoryHostPointerPropertiesEXT", d.rank, vk.Result(result)); err != nil {
		return err
	}
	// The host touches no staging, which does without coherence where it must.
	index, _, err := d.memoryType(b.handle, uint32(bits), hostCoherent)
	if b.coherent = err == nil; !b.coherent {
		index, _, err = d.memoryType(b.handle, uint32(bits), 0)
	}
	if err != nil {
		return err
	}
	host := vk.ImportMemoryHostPointerInfo{SType: vk.StructureTypeImportMemoryHostPointerInfo,
		HandleType: vk.ExternalMemoryHandleTypeHostAllocationBit, PHostPointer: pointer}
	ref, _ := host.PassRef()
	defer host.Free()
	if err := b.allocate(index, vk.DeviceSize(len(memory)), unsafe.Pointer(ref)); err != nil {
		return fmt.Errorf("import of %d bytes of host memory: %w", len(memory), err)
	}
	return nil
}

// hostPages allocates zeroed pages, a multiple of align bytes long, at an
// address that is a multiple of align. They are anonymous and private: amdgpu
// imports no others. The second result is what munmap takes.
func hostPages(size, align int64) (memory, mapping []byte, err error) {
	align = max(align, int64(unix.Getpagesize()))
	size = (size + align - 1) / align * align
	mapping, err = unix.Mmap(-1, 0, int(size+align), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("%d bytes of staging: %w", size, err)
	}
	address := int64(uintptr(unsafe.Pointer(unsafe.SliceData(mapping))))
	skip := (align - address%align) % align
	memory = mapping[skip : skip+size]
	clear(memory) // present before a driver pins them
	return memory, mapping, nil
}
