package vkimpl

// #cgo LDFLAGS: -ldl
// #include "dispatch.h"
// #include "standalone.h"
import "C"

import (
	"errors"
	"fmt"
	"math"
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

	handle   vk.PhysicalDevice
	families families
}

// StandaloneOptions changes what OpenStandalone makes. The zero value is what
// ggml would make.
type StandaloneOptions struct {
	NoTransferQueue bool
	// AliasTransferQueue names the compute queue as the transfer queue as well
	// on a device without a family for it. Schedules run all the same, since
	// their submission order alone never makes a queue wait for itself.
	AliasTransferQueue bool
}

// Standalone is a Vulkan instance with devices of our own, for what runs
// without ggml: benchmarks, diagnosis, tests.
type Standalone struct {
	Physical  []PhysicalDevice // all that there are
	Adopted   []Adopted        // one for each rank
	Callbacks Callbacks

	loader   uintptr
	instance vk.Instance
	devices  []vk.Device
	known    []*C.struct_vkcomm_standalone_device
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
	return bindInstance(&Adopted{Instance: raw(instance), GetInstanceProcAddr: s.loader})
}

// bindLoader lets goki/vulkan create an instance. Its function table is global;
// once filled it holds the loader's entry points, which serve every instance.
func bindLoader(getInstanceProcAddr uintptr) error {
	bindOnce.Lock()
	defer bindOnce.Unlock()
	if bindOnce.instance != 0 {
		return nil
	}
	vk.SetGetInstanceProcAddr(as[unsafe.Pointer](getInstanceProcAddr))
	return vk.Init()
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
		d, err := s.describe(h)
		if err != nil {
			return err
		}
		s.Physical = append(s.Physical, d)
	}
	return nil
}

func (s *Standalone) describe(handle vk.PhysicalDevice) (PhysicalDevice, error) {
	var p C.struct_vkcomm_properties
	missing := C.vkcomm_vk_properties(as[C.VkInstance](raw(s.instance)), as[C.VkPhysicalDevice](raw(handle)),
		as[C.PFN_vkGetInstanceProcAddr](s.loader), false, &p)
	if missing != nil {
		return PhysicalDevice{}, fmt.Errorf("%w: the loader has no %s", ErrNoVulkan, C.GoString(missing))
	}
	var core vk.PhysicalDeviceProperties
	vk.GetPhysicalDeviceProperties(handle, &core)
	core.Deref()
	defer core.Free()
	f := findFamilies(handle)
	return PhysicalDevice{Name: C.GoString(&p.name[0]), Driver: C.GoString(&p.driver[0]), Kind: kindOf(core.DeviceType),
		API: vk.Version(core.ApiVersion).String(), DeviceUUID: *(*[16]byte)(unsafe.Pointer(&p.device_uuid)),
		TransferQueue: f.transfer != noFamily, handle: handle, families: f}, nil
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

// families are indices of queue families, or noFamily.
type families struct{ compute, transfer uint32 }

const noFamily = math.MaxUint32

// findFamilies chooses as ggml does: for compute a family without graphics
// where there is one, for transfers one that does neither.
func findFamilies(physical vk.PhysicalDevice) families {
	var count uint32
	vk.GetPhysicalDeviceQueueFamilyProperties(physical, &count, nil)
	all := make([]vk.QueueFamilyProperties, count)
	vk.GetPhysicalDeviceQueueFamilyProperties(physical, &count, all)
	found := families{noFamily, noFamily}
	var computeFlags, transferFlags vk.QueueFlags
	const (
		graphics = vk.QueueFlags(vk.QueueGraphicsBit)
		compute  = vk.QueueFlags(vk.QueueComputeBit)
		transfer = vk.QueueFlags(vk.QueueTransferBit)
	)
	for i := range all {
		all[i].Deref()
		flags := all[i].QueueFlags
		all[i].Free()
		switch {
		case flags&compute != 0:
			if found.compute == noFamily || computeFlags&graphics != 0 && flags&graphics == 0 {
				found.compute, computeFlags = uint32(i), flags
			}
		case flags&transfer != 0 && flags&graphics == 0:
			// Fewer flags: a copy engine rather than a video engine.
			if found.transfer == noFamily || flags < transferFlags {
				found.transfer, transferFlags = uint32(i), flags
			}
		}
	}
	return found
}

// add makes rank's device.
func (s *Standalone) add(rank, index int, options StandaloneOptions) error {
	if index < 0 || index >= len(s.Physical) {
		return fmt.Errorf("%w: rank %d is to be on device %d, there are %d", ErrUnsupported, rank, index, len(s.Physical))
	}
	p := &s.Physical[index]
	f := p.families
	if f.compute == noFamily {
		return unsupported(rank, "cannot compute")
	}
	if options.NoTransferQueue {
		f.transfer = noFamily
	}
	a := Adopted{Instance: raw(s.instance), PhysicalDevice: raw(p.handle), QueueFamily: f.compute, GetInstanceProcAddr: s.loader}
	device, err := s.makeDevice(rank, p.handle, f, &a)
	if err != nil {
		return err
	}
	s.devices = append(s.devices, device)
	a.Device, a.Queue = raw(device), queueOf(device, f.compute)
	switch {
	case f.transfer != noFamily:
		a.TransferQueue, a.TransferFamily = queueOf(device, f.transfer), f.transfer
	case options.AliasTransferQueue:
		a.TransferQueue, a.TransferFamily = a.Queue, f.compute
	}
	a.GetDeviceProcAddr = s.deviceProcAddr()
	known := C.vkcomm_standalone_add(as[C.VkDevice](a.Device), as[C.PFN_vkGetDeviceProcAddr](a.GetDeviceProcAddr),
		as[C.VkQueue](a.Queue), as[C.VkQueue](a.TransferQueue))
	if known == nil {
		return unsupported(rank, "has no vkQueueSubmit")
	}
	s.known = append(s.known, known)
	s.Adopted = append(s.Adopted, a)
	return nil
}

func queueOf(device vk.Device, family uint32) uintptr {
	var queue vk.Queue
	vk.GetDeviceQueue(device, family, 0, &queue)
	return raw(queue)
}

func (s *Standalone) deviceProcAddr() uintptr {
	return raw(C.vkcomm_standalone_device_proc_addr(as[C.VkInstance](raw(s.instance)), as[C.PFN_vkGetInstanceProcAddr](s.loader)))
}

// makeDevice makes a device with a queue of each family, and with what a
// communicator can use of extensions and features, and notes the latter in a.
func (s *Standalone) makeDevice(rank int, physical vk.PhysicalDevice, f families, a *Adopted) (vk.Device, error) {
	queues := []vk.DeviceQueueCreateInfo{{SType: vk.StructureTypeDeviceQueueCreateInfo, QueueFamilyIndex: f.compute,
		QueueCount: 1, PQueuePriorities: []float32{1}}}
	if f.transfer != noFamily {
		queues = append(queues, queues[0])
		queues[1].QueueFamilyIndex = f.transfer
	}
	extensions, err := s.extensions(rank, physical, a)
	if err != nil {
		return nil, err
	}
	has := C.vkcomm_standalone_query(as[C.VkInstance](raw(s.instance)), as[C.VkPhysicalDevice](raw(physical)),
		as[C.PFN_vkGetInstanceProcAddr](s.loader))
	a.Timeline, a.DynamicIndexing = bool(has.timeline), bool(has.dynamic_indexing)
	timeline := vk.PhysicalDeviceTimelineSemaphoreFeatures{SType: vk.StructureTypePhysicalDeviceTimelineSemaphoreFeatures,
		TimelineSemaphore: vkBool(a.Timeline)}
	defer timeline.Free()
	next, _ := timeline.PassRef()
	info := vk.DeviceCreateInfo{SType: vk.StructureTypeDeviceCreateInfo, PNext: unsafe.Pointer(next),
		QueueCreateInfoCount: uint32(len(queues)), PQueueCreateInfos: queues,
		EnabledExtensionCount: uint32(len(extensions)), PpEnabledExtensionNames: extensions,
		PEnabledFeatures: []vk.PhysicalDeviceFeatures{{ShaderStorageBufferArrayDynamicIndexing: vkBool(a.DynamicIndexing)}}}
	defer info.Free()
	var device vk.Device
	return device, check("vkCreateDevice", rank, vk.CreateDevice(physical, &info, nil, &device))
}

// extensions lists those that plugin/vkhooks.c adds to ggml's devices, as far as
// the device has them, and notes them in a.
func (s *Standalone) extensions(rank int, physical vk.PhysicalDevice, a *Adopted) (names []string, err error) {
	var count uint32
	result := vk.EnumerateDeviceExtensionProperties(physical, "", &count, nil)
	all := make([]vk.ExtensionProperties, count)
	if result == vk.Success && count > 0 {
		result = vk.EnumerateDeviceExtensionProperties(physical, "", &count, all)
	}
	if err := check("vkEnumerateDeviceExtensionProperties", rank, result); err != nil {
		return nil, err
	}
	var ignored bool
	wanted := map[string]*bool{
		"VK_EXT_external_memory_host":    &a.ExternalMemoryHost,
		"VK_KHR_external_memory_fd":      &ignored,
		"VK_EXT_external_memory_dma_buf": &ignored,
		"VK_KHR_external_semaphore_fd":   &a.ExternalSemaphoreFD,
	}
	for i := range all[:count] {
		all[i].Deref()
		name := vk.ToString(all[i].ExtensionName[:])
		all[i].Free()
		if enabled := wanted[name]; enabled != nil {
			*enabled = true
			names = append(names, name+"\x00")
		}
	}
	return names, nil
}

func vkBool(b bool) vk.Bool32 {
	if b {
		return vk.True
	}
	return vk.False
}
