package vkimpl

// #include <stdlib.h>
// #include "executor.h"
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	vk "github.com/goki/vulkan"
	"golang.org/x/sys/unix"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/semaphores"
)

// Ranks is the Vulkan side of one communicator. It is not safe for concurrent
// use, apart from Drain.
type Ranks struct {
	Devices []*Device

	c        *C.struct_vkcomm_executor // C memory: proxies and the drain callback hold it
	pages    [][]byte                  // mappings behind the staging
	staging  [][]*Buffer               // [device rank][owner rank]
	scratch  []*Buffer                 // by rank, empty where no schedule needs it
	p2p      p2p
	ordering *semaphores.Ordering
	relay    *relay // nil: none
	tracing  bool   // of programs recorded from now on
}

// Callbacks are C functions of the host side.
type Callbacks struct {
	Submit uintptr // vkcomm_submit_fn: vkQueueSubmit under the device's lock
	Log    uintptr // vkcomm_log_fn
	// Hold and Flush let relayed reductions go out with the host's next
	// submission. 0: there is no host that submits.
	Hold  uintptr // vkcomm_hold_fn
	Flush uintptr // vkcomm_flush_fn
}

// Open adopts the ranks' devices. Nothing of ggml's is changed.
func Open(adopted []Adopted, callbacks Callbacks) (*Ranks, error) {
	if len(adopted) > allreduce.MaxWorld {
		return nil, fmt.Errorf("%w: %d ranks, at most %d", ErrUnsupported, len(adopted), allreduce.MaxWorld)
	}
	r := &Ranks{c: (*C.struct_vkcomm_executor)(C.calloc(1, C.sizeof_struct_vkcomm_executor))}
	r.c.world = C.uint32_t(len(adopted))
	r.c.submit = as[C.vkcomm_submit_fn](callbacks.Submit)
	r.c.log = as[C.vkcomm_log_fn](callbacks.Log)
	r.c.hold = as[C.vkcomm_hold_fn](callbacks.Hold)
	r.c.flush = as[C.vkcomm_flush_fn](callbacks.Flush)
	for i, a := range adopted {
		d := &Device{}
		err := bindInstance(&a)
		if err == nil {
			err = d.adopt(i, a, &r.c.ranks[i])
		}
		if err == nil {
			r.Devices = append(r.Devices, d)
			err = d.makeLayouts(len(adopted))
		}
		if err == nil {
			err = d.makeCommandPools()
		}
		if err != nil {
			r.Close()
			return nil, err
		}
	}
	r.agreeOnDenormals()
	return r, nil
}

// agreeOnDenormals lets ranks with different drivers all keep denormals, where
// all can: a sum is to have the same bits on every rank.
func (r *Ranks) agreeOnDenormals() {
	mixed, able := false, true
	for _, d := range r.Devices {
		mixed = mixed || d.DriverUUID != r.Devices[0].DriverUUID
		able = able && d.limits.denormPreserve32
	}
	for _, d := range r.Devices {
		d.keepDenormals = mixed && able
	}
}

// ImportStaging allocates bytes of host memory for each rank and imports it
// into every rank's device. The size is rounded up to what the devices import.
func (r *Ranks) ImportStaging(bytes int64) error {
	align := int64(2 * allreduce.OffsetAlign)
	for _, d := range r.Devices {
		align = max(align, int64(d.limits.hostImportAlignment))
	}
	r.staging = make([][]*Buffer, len(r.Devices))
	for owner := range r.Devices {
		memory, mapping, err := hostPages(bytes, align)
		if err != nil {
			return err
		}
		r.pages = append(r.pages, mapping)
		for i, d := range r.Devices {
			b, err := d.importHost(memory)
			if err != nil {
				return fmt.Errorf("staging of rank %d: %w", owner, err)
			}
			r.staging[i] = append(r.staging[i], b)
		}
	}
	return nil
}

// AllocateScratch gives every rank device-local memory of the size of its
// staging: what a transfer queue copies from and to, and where a 16-bit wire
// leaves a rank's own operand.
func (r *Ranks) AllocateScratch() error {
	for i, d := range r.Devices {
		b, err := d.newBuffer(r.staging[i][i].size, vk.MemoryPropertyFlags(vk.MemoryPropertyDeviceLocalBit))
		if err != nil {
			return fmt.Errorf("scratch of rank %d: %w", i, err)
		}
		r.scratch = append(r.scratch, b)
	}
	return nil
}

// TransferQueues has bit r set where rank r has a transfer queue of its own.
func (r *Ranks) TransferQueues() (mask uint64) {
	for i, d := range r.Devices {
		if d.adopted.TransferQueue != 0 {
			mask |= 1 << i
		}
	}
	return mask
}

// Vendors are the PCI vendors of the ranks' devices.
func (r *Ranks) Vendors() (vendors []uint32) {
	for _, d := range r.Devices {
		vendors = append(vendors, d.VendorID)
	}
	return vendors
}

// LeaveTransferQueues makes the ranks do without their transfer queues, of which
// none may be in use. The ordering has to be made anew.
func (r *Ranks) LeaveTransferQueues() {
	for _, d := range r.Devices {
		d.adopted.TransferQueue = 0
	}
}

// HalfBytes is the size of one half of a rank's staging.
func (r *Ranks) HalfBytes() int64 {
	return r.staging[0][0].size / 2 / allreduce.OffsetAlign * allreduce.OffsetAlign
}

// ChunkBytes bounds one step: what a kernel can address in one binding and
// cover in one dispatch, on every device.
func (r *Ranks) ChunkBytes() int64 {
	limit := int64(maxDispatch * 4)
	for _, d := range r.Devices {
		// A tensor is bound from an aligned address below its first element on.
		limit = min(limit, int64(d.limits.maxStorageRange-d.limits.offsetAlignment))
	}
	return limit / 1024 * 1024
}

// DeviceBytes is the device memory that rank's side of the communicator took.
func (r *Ranks) DeviceBytes(rank int) uint64 { return r.Devices[rank].deviceBytes }

// Order makes the semaphores of the given kind and takes them into use. The
// ordering in use before, which no queue may need any more, is closed.
func (r *Ranks) Order(kind semaphores.Kind) error {
	if r.ordering != nil {
		r.ordering.Close()
		r.ordering = nil
	}
	for rank := range r.Devices {
		r.c.timeline[rank] = [C.VKCOMM_QUEUES]C.VkSemaphore{}
	}
	queues := make([]int, len(r.Devices))
	for rank, d := range r.Devices {
		queues[rank] = d.queues()
	}
	o, err := semaphores.New(kind, queues, (*backend)(r))
	if err != nil {
		return err
	}
	for rank := range queues {
		for queue := range queues[rank] {
			r.c.timeline[rank][queue] = as[C.VkSemaphore](uintptr(o.Progress(rank, queue)))
			r.c.base[rank][queue] = 0
		}
	}
	r.ordering = o
	C.vkcomm_executor_begin_trial(r.c)
	return nil
}

// Failed is what went wrong since Order on a queue or in a proxy: other queues
// may wait for ever then, until Release.
func (r *Ranks) Failed() error {
	var what *C.char
	if result := C.vkcomm_executor_trial(r.c, &what); result != C.VK_SUCCESS {
		return fmt.Errorf("%s: VkResult %d", C.GoString(what), result)
	}
	return nil
}

// Use ends the trial that Order began: from now on, what fails after a first
// submission ends the process. watched is false when there is no thread to see
// to it that a lost device is noticed.
func (r *Ranks) Use() (watched bool) {
	C.vkcomm_executor_use(r.c)
	if r.c.relay != nil {
		C.vkcomm_relay_arm(r.c.relay)
	}
	r.c.watch = C.vkcomm_watch_start(r.c)
	return r.c.watch != nil
}

// Leave ends what Use began but for this: failures stay fatal. What is still in
// flight is waited for with a time limit, or not at all.
func (r *Ranks) Leave() {
	if r.c.watch != nil {
		C.vkcomm_watch_stop(r.c.watch)
		r.c.watch = nil
	}
}

// Kind is the ordering in use.
func (r *Ranks) Kind() semaphores.Kind { return r.ordering.Kind() }

// Drain waits until everything submitted to rank's queue is complete. ok is
// false when timeout passed first.
func (r *Ranks) Drain(rank int, timeout time.Duration) (ok bool, err error) {
	result := C.vkcomm_executor_drain(r.c, C.uint32_t(rank), C.uint64_t(timeout.Nanoseconds()))
	if result == C.VK_TIMEOUT {
		return false, nil
	}
	return result == C.VK_SUCCESS, check("waiting for the queue", rank, vk.Result(result))
}

// DrainCallback is a C function, void (*)(void *, bool), and its argument: what a
// host that synchronises rank calls, with whether it has waited for our work as
// well. It waits otherwise, without a timeout and without Go.
func (r *Ranks) DrainCallback(rank int) (function, argument uintptr) {
	drain := &r.c.drains[rank]
	drain.executor, drain.rank = r.c, C.uint32_t(rank)
	return uintptr(C.vkcomm_executor_synchronized), uintptr(unsafe.Pointer(drain))
}

// Release lets go every queue that still waits for a semaphore of this
// communicator. Afterwards it is good for nothing but Drain and Close.
func (r *Ranks) Release() {
	if r.ordering == nil {
		return // Order has failed, when nothing was in flight
	}
	(*backend)(r).StopProxies() // a value that they carry now would be a step back
	var views []C.VkSemaphore
	for rank := range r.Devices {
		for peer, d := range r.Devices {
			var seen [C.VKCOMM_QUEUES]C.VkSemaphore
			for queue := range d.queues() {
				seen[queue] = as[C.VkSemaphore](uintptr(r.ordering.View(rank, peer, queue)))
			}
			views = append(views, seen[:]...)
		}
	}
	C.vkcomm_executor_release(r.c, unsafe.SliceData(views))
}

// Fatal ends the process with one ERROR line: part of a reduction was
// submitted and cannot be completed.
func (r *Ranks) Fatal(what string, result vk.Result) {
	text := C.CString(what)
	C.vkcomm_executor_fatal(r.c, text, C.VkResult(result))
}

// Close releases everything. No queue may use any of it.
func (r *Ranks) Close() {
	r.Leave()
	r.CloseRelay()
	if r.ordering != nil {
		r.ordering.Close()
	}
	for i := range r.staging {
		for _, b := range r.staging[i] {
			b.Close()
		}
	}
	r.closeP2P()
	for _, b := range r.scratch {
		b.Close()
	}
	for _, d := range r.Devices {
		d.close()
	}
	for _, mapping := range r.pages {
		_ = unix.Munmap(mapping) // of our own mmap: cannot fail
	}
	C.free(unsafe.Pointer(r.c))
	r.c = nil
}

// backend gives the semaphores package what it needs of the devices.
type backend Ranks

func (b *backend) NewTimeline(rank int, exportable bool) (semaphores.Handle, error) {
	kind := vk.SemaphoreTypeCreateInfo{SType: vk.StructureTypeSemaphoreTypeCreateInfo, SemaphoreType: vk.SemaphoreTypeTimeline}
	defer kind.Free()
	if exportable {
		export := vk.ExportSemaphoreCreateInfo{SType: vk.StructureTypeExportSemaphoreCreateInfo,
			HandleTypes: vk.ExternalSemaphoreHandleTypeFlags(vk.ExternalSemaphoreHandleTypeOpaqueFdBit)}
		ref, _ := export.PassRef()
		defer export.Free()
		kind.PNext = unsafe.Pointer(ref)
	}
	ref, _ := kind.PassRef()
	info := vk.SemaphoreCreateInfo{SType: vk.StructureTypeSemaphoreCreateInfo, PNext: unsafe.Pointer(ref)}
	defer info.Free()
	var s vk.Semaphore
	err := check("vkCreateSemaphore", rank, vk.CreateSemaphore(b.Devices[rank].handle, &info, nil, &s))
	return semaphores.Handle(raw(s)), err
}

func (b *backend) ShareTimeline(from int, timeline semaphores.Handle, to int) (semaphores.Handle, error) {
	shared, err := b.NewTimeline(to, false)
	if err != nil {
		return 0, err
	}
	var fd C.int
	result := C.vkcomm_vk_export_timeline(b.Devices[from].vk, as[C.VkSemaphore](uintptr(timeline)), &fd)
	if err = check("vkGetSemaphoreFdKHR", from, vk.Result(result)); err == nil {
		result = C.vkcomm_vk_import_timeline(b.Devices[to].vk, as[C.VkSemaphore](uintptr(shared)), fd)
		if err = check("vkImportSemaphoreFdKHR", to, vk.Result(result)); err != nil && fd >= 0 {
			_ = unix.Close(int(fd)) // a failed import leaves it to us
		}
	}
	if err != nil {
		b.Destroy(to, shared)
		return 0, err
	}
	return shared, nil
}

func (b *backend) Destroy(rank int, timeline semaphores.Handle) {
	vk.DestroySemaphore(b.Devices[rank].handle, as[vk.Semaphore](uintptr(timeline)), nil)
}

func (b *backend) StartProxy(rank, queue int, timeline semaphores.Handle, mirrors []semaphores.Mirror) error {
	var peers []*C.struct_vkcomm_vk
	var handles []C.VkSemaphore
	for _, m := range mirrors {
		peers = append(peers, b.Devices[m.Peer].vk)
		handles = append(handles, as[C.VkSemaphore](uintptr(m.Handle)))
	}
	p := C.vkcomm_proxy_start(C.uint(rank), C.uint(queue), b.Devices[rank].vk, as[C.VkSemaphore](uintptr(timeline)), C.uint(len(mirrors)),
		unsafe.SliceData(peers), unsafe.SliceData(handles),
		C.vkcomm_proxy_failed(C.vkcomm_executor_proxy_failed), unsafe.Pointer(b.c))
	if p == nil {
		return fmt.Errorf("no thread or memory for the proxy of rank %d", rank)
	}
	b.c.proxy[rank][queue] = p
	return nil
}

func (b *backend) StopProxies() {
	for rank := range b.Devices {
		for queue, p := range b.c.proxy[rank] {
			if p != nil {
				C.vkcomm_proxy_stop(p)
				b.c.proxy[rank][queue] = nil
			}
		}
	}
}
