package vkimpl

// #cgo LDFLAGS: -ldl
// #include "dispatch.h"
// #include "standalone.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	vk "github.com/goki/vulkan"
)

// ErrNoVulkan: this machine has no Vulkan loader, or no device behind it.
var ErrNoVulkan = errors.New("no Vulkan")

// PhysicalDevice is a device as the Vulkan loader lists it.
type PhysicalDevice struct {
	Name, Driver  string
	Kind          string // discrete, integrated, virtual, cpu or other
	API           string // highest Vulkan version
	DeviceUUID    [16]byte
	TransferQueue bool // has a queue family that only copies

	handle vk.PhysicalDevice
	offer  C.struct_vkcomm_standalone_offer
}

// StandaloneOptions changes what OpenStandalone makes. The zero value is what
// ggml would make.
type StandaloneOptions struct {
	NoTransferQueue bool
	// AliasTransferQueue names the compute queue as the transfer queue as well
	// on a device without a family for it. Schedules run all the same: in
	// submission order nothing waits for what comes later.
	AliasTransferQueue bool
}

// Standalone is a Vulkan instance with devices of our own, for what runs
// without ggml: benchmarks, diagnosis, tests.
type Standalone struct {
	Physical  []PhysicalDevice // all that there are
	Adopted   []Adopted        // one for each rank
	Callbacks Callbacks

	loader         uintptr // vkGetInstanceProcAddr
	deviceProcAddr uintptr // vkGetDeviceProcAddr
	instance       vk.Instance
	devices        []vk.Device
	known          []*C.struct_vkcomm_standalone_device
}

// OpenStandalone makes a device for each rank: rank r is on
// Physical[physical[r]], which several ranks may share. No rank at all is good
// for a look at Physical. Without a Vulkan device the error is ErrNoVulkan.
func OpenStandalone(physical []int, options StandaloneOptions) (*Standalone, error) {
	s := &Standalone{loader: raw(C.vkcomm_standalone_loader()), Callbacks: Callbacks{
		Submit: uintptr(C.vkcomm_standalone_submit),
		Log:    uintptr(C.vkcomm_standalone_log),
	}}
	if s.loader == 0 {
		return nil, fmt.Errorf("%w: there is no libvulkan.so.1", ErrNoVulkan)
	}
	err := s.makeInstance()
	if err == nil {
		err = s.list()
	}
	for rank, index := range physical {
		if err == nil {
			err = s.add(rank, index, options)
		}
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close destroys the devices. Whatever Open made of them is closed already.
func (s *Standalone) Close() {
	for _, k := range s.known {
		C.vkcomm_standalone_remove(k)
	}
	for _, d := range s.devices {
		vk.DestroyDevice(d, nil)
	}
	if s.instance != nil {
		vk.DestroyInstance(s.instance, nil)
	}
}

func (s *Standalone) makeInstance() error {
	if err := bindLoader(s.loader); err != nil {
		return err
	}
	app := vk.ApplicationInfo{SType: vk.StructureTypeApplicationInfo, PApplicationName: "vkcomm\x00",
		PEngineName: "vkcomm\x00", ApiVersion: vk.MakeVersion(1, 2, 0)}
	info := vk.InstanceCreateInfo{SType: vk.StructureTypeInstanceCreateInfo, PApplicationInfo: &app}
	defer info.Free()
	var instance vk.Instance
	if result := vk.CreateInstance(&info, nil, &instance); result != vk.Success {
		return fmt.Errorf("%w: vkCreateInstance: VkResult %d", ErrNoVulkan, result)
	}
	s.instance = instance
	s.deviceProcAddr = raw(C.vkcomm_standalone_device_proc_addr(as[C.VkInstance](raw(instance)), s.getProcAddr()))
	return bindInstance(&Adopted{Instance: raw(instance), GetInstanceProcAddr: s.loader})
}

// bindLoader lets goki/vulkan create an instance. Its function table is global;
// once filled it holds the loader's entry points, which serve every instance.
func bindLoader(getInstanceProcAddr uintptr) error {
	bindOnce.Lock()
	defer bindOnce.Unlock()
	if bindOnce.loader != 0 {
		return nil
	}
	vk.SetGetInstanceProcAddr(as[unsafe.Pointer](getInstanceProcAddr))
	return vk.Init()
}

func (s *Standalone) getProcAddr() C.PFN_vkGetInstanceProcAddr {
	return as[C.PFN_vkGetInstanceProcAddr](s.loader)
}

func (s *Standalone) list() error {
	var count uint32
	result := vk.EnumeratePhysicalDevices(s.instance, &count, nil)
	handles := make([]vk.PhysicalDevice, count)
	if result == vk.Success && count > 0 {
		result = vk.EnumeratePhysicalDevices(s.instance, &count, handles)
	}
	if result != vk.Success || count == 0 {
		return fmt.Errorf("%w: no device (VkResult %d)", ErrNoVulkan, result)
	}
	for _, h := range handles[:count] {
		d := PhysicalDevice{handle: h}
		if err := s.describe(&d); err != nil {
			return err
		}
		s.Physical = append(s.Physical, d)
	}
	return nil
}

func (s *Standalone) describe(d *PhysicalDevice) error {
	instance, physical := as[C.VkInstance](raw(s.instance)), as[C.VkPhysicalDevice](raw(d.handle))
	var p C.struct_vkcomm_properties
	if missing := C.vkcomm_vk_properties(instance, physical, s.getProcAddr(), false, &p); missing != nil {
		return fmt.Errorf("%w: the loader has no %s", ErrNoVulkan, C.GoString(missing))
	}
	var offer C.struct_vkcomm_standalone_offer
	C.vkcomm_standalone_query(instance, physical, s.getProcAddr(), &offer)
	var core vk.PhysicalDeviceProperties
	vk.GetPhysicalDeviceProperties(d.handle, &core)
	core.Deref()
	defer core.Free()
	d.Name, d.Driver = C.GoString(&p.name[0]), C.GoString(&p.driver[0])
	d.Kind, d.API = kindOf(core.DeviceType), vk.Version(core.ApiVersion).String()
	d.DeviceUUID = *(*[16]byte)(unsafe.Pointer(&p.device_uuid))
	d.TransferQueue = offer.transfer_family != C.VKCOMM_NO_FAMILY
	d.offer = offer
	return nil
}

func kindOf(t vk.PhysicalDeviceType) string {
	switch t {
	case vk.PhysicalDeviceTypeDiscreteGpu:
		return "discrete"
	case vk.PhysicalDeviceTypeIntegratedGpu:
		return "integrated"
	case vk.PhysicalDeviceTypeVirtualGpu:
		return "virtual"
	case vk.PhysicalDeviceTypeCpu:
		return "cpu"
	}
	return "other"
}

// add makes rank's device.
func (s *Standalone) add(rank, index int, options StandaloneOptions) error {
	if index < 0 || index >= len(s.Physical) {
		return fmt.Errorf("%w: rank %d is to be on device %d, there are %d", ErrUnsupported, rank, index, len(s.Physical))
	}
	physical, offer := s.Physical[index].handle, s.Physical[index].offer
	if offer.compute_family == C.VKCOMM_NO_FAMILY {
		return unsupported(rank, "cannot compute")
	}
	if options.NoTransferQueue {
		offer.transfer_family = C.VKCOMM_NO_FAMILY
	}
	var made C.VkDevice
	result := C.vkcomm_standalone_create(as[C.VkInstance](raw(s.instance)), as[C.VkPhysicalDevice](raw(physical)),
		s.getProcAddr(), &offer, &made)
	if err := check("vkCreateDevice", rank, vk.Result(result)); err != nil {
		return err
	}
	device := as[vk.Device](raw(made))
	s.devices = append(s.devices, device)
	a := Adopted{
		Instance: raw(s.instance), PhysicalDevice: raw(physical), Device: raw(device),
		Queue: queueOf(device, offer.compute_family), QueueFamily: uint32(offer.compute_family),
		GetInstanceProcAddr: s.loader, GetDeviceProcAddr: s.deviceProcAddr,
		Timeline: bool(offer.timeline), DynamicIndexing: bool(offer.dynamic_indexing),
		ExternalMemoryHost: bool(offer.external_memory_host), ExternalSemaphoreFD: bool(offer.external_semaphore_fd),
		ExternalMemoryFD: bool(offer.external_memory_fd), DMABuf: bool(offer.external_dma_buf),
		QueueFamilyForeign: bool(offer.queue_family_foreign),
	}
	switch {
	case offer.transfer_family != C.VKCOMM_NO_FAMILY:
		a.TransferQueue, a.TransferFamily = queueOf(device, offer.transfer_family), uint32(offer.transfer_family)
	case options.AliasTransferQueue:
		a.TransferQueue, a.TransferFamily = a.Queue, a.QueueFamily
	}
	s.Adopted = append(s.Adopted, a)
	known := C.vkcomm_standalone_add(made, as[C.PFN_vkGetDeviceProcAddr](a.GetDeviceProcAddr),
		as[C.VkQueue](a.Queue), as[C.VkQueue](a.TransferQueue))
	if known == nil {
		return unsupported(rank, "has no vkQueueSubmit")
	}
	s.known = append(s.known, known)
	return nil
}

func queueOf(device vk.Device, family C.uint32_t) uintptr {
	var queue vk.Queue
	vk.GetDeviceQueue(device, uint32(family), 0, &queue)
	return raw(queue)
}
