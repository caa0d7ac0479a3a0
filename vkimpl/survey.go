package vkimpl

// #include "dispatch.h"
// #include "survey.h"
import "C"

import (
	"fmt"
	"strings"
	"unsafe"

	vk "github.com/goki/vulkan"
)

// Survey is what a diagnosis shows of a device beyond PhysicalDevice.
type Survey struct {
	DriverUUID          [16]byte
	PCI                 string // dddd:bb:dd.f, empty where the driver does not say
	Heaps               []Heap
	Families            []QueueFamily
	Extensions          []Extension // those of interest
	HostImportAlignment uint64      // 0: host memory cannot be imported
	MaxStorageRange     uint64
	OnCPU               bool
	Timeline            bool // timeline semaphores
	TimelineShareable   bool // OPAQUE_FD timelines can leave and enter it
	DynamicIndexing     bool // shaderStorageBufferArrayDynamicIndexing
}

// Heap is a memory heap.
type Heap struct {
	Bytes       uint64
	DeviceLocal bool
	HostWindow  bool // device-local, and the host can write it
}

// QueueFamily is a family of queues; Does lists graphics, compute, transfer and
// what else it can.
type QueueFamily struct {
	Does   string
	Queues int
}

// Extension is one by name, and whether the device has it.
type Extension struct {
	Name string
	Has  bool
}

// Survey looks at Physical[index].
func (s *Standalone) Survey(index int) Survey {
	d := &s.Physical[index]
	instance, physical := as[C.VkInstance](raw(s.instance)), as[C.VkPhysicalDevice](raw(d.handle))
	var c C.struct_vkcomm_survey
	C.vkcomm_survey(instance, physical, s.getProcAddr(), &c)
	var p C.struct_vkcomm_properties
	C.vkcomm_vk_properties(instance, physical, s.getProcAddr(), d.offer.external_memory_host, &p) // list has seen it succeed
	out := Survey{
		DriverUUID:          *(*[16]byte)(unsafe.Pointer(&p.driver_uuid)),
		HostImportAlignment: uint64(p.host_import_alignment),
		MaxStorageRange:     uint64(p.max_storage_range),
		OnCPU:               bool(p.on_cpu),
		Timeline:            bool(d.offer.timeline),
		TimelineShareable:   bool(p.timeline_shareable) && bool(d.offer.external_semaphore_fd),
		DynamicIndexing:     bool(d.offer.dynamic_indexing),
	}
	if c.has_pci {
		out.PCI = fmt.Sprintf("%04x:%02x:%02x.%x", uint32(c.pci[0]), uint32(c.pci[1]), uint32(c.pci[2]), uint32(c.pci[3]))
	}
	for i := range c.heaps {
		out.Heaps = append(out.Heaps, Heap{uint64(c.heap_bytes[i]), bool(c.heap_local[i]), bool(c.heap_window[i])})
	}
	for i := range c.families {
		out.Families = append(out.Families, QueueFamily{queueFlags(uint32(c.family_flags[i])), int(c.family_queues[i])})
	}
	for i, name := range C.vkcomm_survey_extensions {
		out.Extensions = append(out.Extensions, Extension{C.GoString(name), bool(c.extensions[i])})
	}
	return out
}

func queueFlags(flags uint32) string {
	var does []string
	for i, name := range []string{"graphics", "compute", "transfer", "sparse", "", "video decode", "video encode"} {
		if flags>>i&1 != 0 && name != "" {
			does = append(does, name)
		}
	}
	return strings.Join(does, "+")
}

// HeaderVersion is the version of the Vulkan headers that this was built with.
func HeaderVersion() string {
	const v = uint32(C.VK_HEADER_VERSION_COMPLETE)
	return fmt.Sprintf("%d.%d.%d", v>>22&0x7f, v>>12&0x3ff, v&0xfff)
}

// ReadBuffer is HostBuffer in memory that the host reads fast, where there is
// such.
func (r *Ranks) ReadBuffer(rank int, floats int64) (*Buffer, Binding, error) {
	cached := hostCoherent | vk.MemoryPropertyFlags(vk.MemoryPropertyHostCachedBit)
	b, err := r.Devices[rank].newBuffer(4*floats, cached)
	if err != nil {
		return r.HostBuffer(rank, floats)
	}
	return b, Binding{Buffer: raw(b.handle), Size: uint64(b.size)}, nil
}
