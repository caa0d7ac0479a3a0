package vkimpl

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra
// #include <stdlib.h>
// #include "executor.h"
import "C"

import (
	"sync"
	"unsafe"

	vk "github.com/goki/vulkan"

	"ggmlvkcomm/allreduce"
)

// Adopted names a device of ggml's, and what was enabled when it was created.
// Handles are the host's and stay its property.
type Adopted struct {
	Instance, PhysicalDevice, Device, Queue uintptr
	QueueFamily                             uint32
	TransferQueue                           uintptr // 0: none
	TransferFamily                          uint32
	GetInstanceProcAddr, GetDeviceProcAddr  uintptr // the real ones
	Timeline, DynamicIndexing               bool    // features
	ExternalMemoryHost, ExternalSemaphoreFD bool    // extensions
	ExternalMemoryFD, DMABuf                bool
	QueueFamilyForeign                      bool
}

// Device is one rank's device.
type Device struct {
	Name, Driver           string
	DeviceUUID, DriverUUID [16]byte
	VendorID               uint32
	OnCPU                  bool // a software implementation
	TimelineShareable      bool // OPAQUE_FD timelines can leave and enter it

	rank     int
	adopted  Adopted
	vk       *C.struct_vkcomm_vk
	handle   vk.Device
	physical vk.PhysicalDevice
	limits   limits
	types    []vk.MemoryType

	keepDenormals bool // see floatModes

	setLayout      vk.DescriptorSetLayout
	pipelineLayout vk.PipelineLayout
	modules        map[string]vk.ShaderModule
	pipelines      map[kernel]vk.Pipeline
	commandPools   [C.VKCOMM_QUEUES]vk.CommandPool
	setBuffers     uint32 // storage buffers in one set
	setPools       []vk.DescriptorPool
	freeSets       []vk.DescriptorSet
	freeCommands   [C.VKCOMM_QUEUES][]vk.CommandBuffer
	deviceBytes    uint64 // memory allocated on it, imports not counted
}

type limits struct {
	hostImportAlignment, offsetAlignment, maxStorageRange uint64
	maxStorageBuffers                                     int
	roundToEven16, denormPreserve16, denormPreserve32     bool
}

// as reinterprets a handle. Handles are 64-bit values, not pointers, whatever
// their type says.
func as[T any](handle uintptr) T { return *(*T)(unsafe.Pointer(&handle)) }

func raw[T any](handle T) uintptr { return *(*uintptr)(unsafe.Pointer(&handle)) }

var bindOnce struct {
	sync.Mutex
	loader uintptr
}

// bindInstance points goki/vulkan, whose function table is global, at the
// loader that ggml uses. Once: the loader's entry points serve every instance,
// and setting them again would pull them away from whoever calls meanwhile.
func bindInstance(a *Adopted) error {
	bindOnce.Lock()
	defer bindOnce.Unlock()
	if bindOnce.loader == a.GetInstanceProcAddr {
		return nil
	}
	vk.SetGetInstanceProcAddr(as[unsafe.Pointer](a.GetInstanceProcAddr))
	if err := vk.Init(); err != nil {
		return err
	}
	if err := vk.InitInstance(as[vk.Instance](a.Instance)); err != nil {
		return err
	}
	bindOnce.loader = a.GetInstanceProcAddr
	return nil
}

// adopt fills d for rank; d.vk points into the executor.
func (d *Device) adopt(rank int, a Adopted, slot *C.struct_vkcomm_vk) error {
	d.rank, d.adopted, d.vk = rank, a, slot
	d.handle, d.physical = as[vk.Device](a.Device), as[vk.PhysicalDevice](a.PhysicalDevice)
	d.modules, d.pipelines = map[string]vk.ShaderModule{}, map[kernel]vk.Pipeline{}
	if !a.Timeline {
		return unsupported(rank, "has no timeline semaphores")
	}
	if !a.ExternalMemoryHost {
		return unsupported(rank, "cannot import host memory (VK_EXT_external_memory_host)")
	}
	if !a.DynamicIndexing {
		return unsupported(rank, "has no shaderStorageBufferArrayDynamicIndexing")
	}
	slot.physical_device = as[C.VkPhysicalDevice](a.PhysicalDevice)
	slot.device = as[C.VkDevice](a.Device)
	slot.queue[allreduce.Compute] = as[C.VkQueue](a.Queue)
	slot.queue[allreduce.Transfer] = as[C.VkQueue](a.TransferQueue)
	if missing := C.vkcomm_vk_load(slot, as[C.PFN_vkGetDeviceProcAddr](a.GetDeviceProcAddr)); missing != nil {
		return unsupported(rank, "has no %s", C.GoString(missing))
	}
	return d.query()
}

func (d *Device) query() error {
	var p C.struct_vkcomm_properties
	missing := C.vkcomm_vk_properties(as[C.VkInstance](d.adopted.Instance), d.vk.physical_device,
		as[C.PFN_vkGetInstanceProcAddr](d.adopted.GetInstanceProcAddr), true, &p)
	if missing != nil {
		return unsupported(d.rank, "has no %s", C.GoString(missing))
	}
	d.Name, d.Driver = C.GoString(&p.name[0]), C.GoString(&p.driver[0])
	d.VendorID, d.OnCPU = uint32(p.vendor_id), bool(p.on_cpu)
	d.DeviceUUID = *(*[16]byte)(unsafe.Pointer(&p.device_uuid))
	d.DriverUUID = *(*[16]byte)(unsafe.Pointer(&p.driver_uuid))
	d.TimelineShareable = bool(p.timeline_shareable) && d.adopted.ExternalSemaphoreFD
	d.limits = limits{
		hostImportAlignment: max(uint64(p.host_import_alignment), 1),
		offsetAlignment:     max(uint64(p.buffer_offset_alignment), 4),
		maxStorageRange:     uint64(p.max_storage_range),
		maxStorageBuffers:   int(p.max_storage_buffers),
		roundToEven16:       bool(p.round_to_even_16),
		denormPreserve16:    bool(p.denorm_preserve_16),
		denormPreserve32:    bool(p.denorm_preserve_32),
	}
	var memory vk.PhysicalDeviceMemoryProperties
	vk.GetPhysicalDeviceMemoryProperties(d.physical, &memory)
	memory.Deref()
	defer memory.Free()
	for i := range memory.MemoryTypeCount {
		memory.MemoryTypes[i].Deref()
		d.types = append(d.types, memory.MemoryTypes[i])
	}
	return nil
}

// queues is how many queues the device takes part with.
func (d *Device) queues() int {
	if d.adopted.TransferQueue != 0 {
		return 2
	}
	return 1
}

// family of the queue that plays the part of q.
func (d *Device) family(q allreduce.Queue) uint32 {
	if q == allreduce.Transfer {
		return d.adopted.TransferFamily
	}
	return d.adopted.QueueFamily
}

// close destroys what was made on the device. Nothing of it may be in use.
func (d *Device) close() {
	for _, p := range d.pipelines {
		vk.DestroyPipeline(d.handle, p, nil)
	}
	for _, m := range d.modules {
		vk.DestroyShaderModule(d.handle, m, nil)
	}
	for _, p := range d.setPools {
		vk.DestroyDescriptorPool(d.handle, p, nil)
	}
	for _, p := range d.commandPools {
		if p != vk.NullCommandPool {
			vk.DestroyCommandPool(d.handle, p, nil)
		}
	}
	if d.pipelineLayout != vk.NullPipelineLayout {
		vk.DestroyPipelineLayout(d.handle, d.pipelineLayout, nil)
	}
	if d.setLayout != vk.NullDescriptorSetLayout {
		vk.DestroyDescriptorSetLayout(d.handle, d.setLayout, nil)
	}
}
