package plugin

// #include <stdlib.h>
// #include "host.h"
//
// static size_t tensor_overhead(void) { return vkcomm_ggml.ggml_tensor_overhead(); }
//
// static void sync_start(struct vkcomm_sync *s, struct ggml_backend *backend, uintptr_t synchronized, uintptr_t context) {
//     *s = (struct vkcomm_sync){ .backend = backend, .synchronized = (void (*)(void *, bool)) synchronized, .context = (void *) context };
//     vkcomm_host->sync_add(s);
// }
//
// static void sync_stop(struct vkcomm_sync *s) { vkcomm_host->sync_remove(s); }
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/semaphores"
	"ggmlvkcomm/vkimpl"
)

const maxRanks = C.VKCOMM_MAX_RANKS

// freeTimeout is how long Free waits for this communicator's own work before
// it leaves the memory to a queue that still uses it.
const freeTimeout = 30 * time.Second

// Comm is a communicator: one llama_context's ranks.
type Comm struct {
	c      *C.struct_vkcomm_comm // the handle that ggml keeps
	mu     sync.Mutex
	config Config
	ranks  *vkimpl.Ranks
	choose selection
	half   int // staging half of the next round
	plans  plans
	key    planKey // scratch of the hot path
	verify *verifier
	stats  stats
	// submitting is set while a reduction's submissions are under way: a panic
	// then cannot be answered with "not done".
	submitting bool
	broken     bool // after a panic
}

// live maps vkcomm_comm.index to its communicator. Readers take no lock.
var live struct {
	sync.Mutex
	table atomic.Pointer[[]*Comm]
}

func lookup(handle unsafe.Pointer) *Comm {
	return (*live.table.Load())[(*C.struct_vkcomm_comm)(handle).index]
}

func publish(c *Comm) {
	live.Lock()
	defer live.Unlock()
	var table []*Comm
	if old := live.table.Load(); old != nil {
		table = append(table, *old...)
	}
	for i, e := range table {
		if e == nil {
			c.c.index, table[i] = C.uint32_t(i), c
			live.table.Store(&table)
			return
		}
	}
	c.c.index = C.uint32_t(len(table))
	table = append(table, c)
	live.table.Store(&table)
}

func withdraw(c *Comm) {
	live.Lock()
	defer live.Unlock()
	table := append([]*Comm(nil), *live.table.Load()...)
	table[c.c.index] = nil
	live.table.Store(&table)
}

// Init makes a communicator over n backends, a ggml_backend_t array, or returns
// nil with one line that says why the host is to reduce by itself.
func Init(backends unsafe.Pointer, n int) unsafe.Pointer {
	runtime.GOMAXPROCS(2) // the host's threads need the cores
	config, overrides, complaints := readConfig(getenv, environNames())
	leastLevel.Store(int32(config.Log))
	for _, line := range complaints {
		logf(levelError, "%s", line)
	}
	started := time.Now()
	c, err := newComm(unsafe.Slice((**C.struct_ggml_backend)(backends), n), config)
	if err != nil {
		logf(levelWarn, "no communicator: %v; llama.cpp goes on with its own AllReduce", err)
		return nil
	}
	publish(c)
	logf(levelInfo, "%s", c.describe(time.Since(started), overrides))
	return unsafe.Pointer(c.c)
}

// checkLayout refuses a ggml whose structures are not those of ggml_comm.h.
func checkLayout() error {
	if missing := C.vkcomm_ggml_load(); missing != nil {
		return fmt.Errorf("ggml has no %s", C.GoString(missing))
	}
	has, want := C.tensor_overhead(), C.vkcomm_expected_overhead()
	if has != want {
		return fmt.Errorf("ggml_tensor_overhead() is %d bytes, this plugin is built for %d: another ggml version", has, want)
	}
	return nil
}

// probe finds the ranks' devices and queues, and refuses what cannot work.
func probe(backends []*C.struct_ggml_backend) ([]C.struct_vkcomm_rank, error) {
	if n := len(backends); n < 2 || n > maxRanks {
		return nil, fmt.Errorf("%d ranks, 2 to %d can take part", n, maxRanks)
	}
	ranks := make([]C.struct_vkcomm_rank, len(backends))
	var text [256]C.char
	for i, b := range backends {
		if !C.vkcomm_probe(b, &ranks[i], &text[0], C.size_t(len(text))) {
			return nil, fmt.Errorf("rank %d: %s", i, C.GoString(&text[0]))
		}
		for j := range i {
			if ranks[j].device.device == ranks[i].device.device {
				return nil, fmt.Errorf("ranks %d and %d are the same device, %s", j, i, C.GoString(ranks[i].name))
			}
		}
	}
	return ranks, nil
}

func newComm(backends []*C.struct_ggml_backend, config Config) (*Comm, error) {
	if err := checkLayout(); err != nil {
		return nil, err
	}
	probed, err := probe(backends)
	if err != nil {
		return nil, err
	}
	c := &Comm{config: config}
	if c.ranks, err = vkimpl.Open(adopt(probed), callbacks()); err != nil {
		return nil, err
	}
	if err := c.ranks.ImportStaging(int64(config.StagingMB) << 20); err != nil {
		c.ranks.Close()
		return nil, err
	}
	if err := c.order(); err != nil {
		return nil, err
	}
	if err := c.selectAlgorithms(); err != nil {
		c.ranks.Close()
		return nil, err
	}
	if config.Check {
		if c.verify, err = newVerifier(c.ranks); err != nil {
			c.ranks.Close()
			return nil, err
		}
	}
	c.register(backends, probed)
	return c, nil
}

// adopt translates what the registry knows for vkimpl.
func adopt(probed []C.struct_vkcomm_rank) (adopted []vkimpl.Adopted) {
	for i := range probed {
		d := &probed[i].device
		has := func(flag C.uint32_t) bool { return d.enabled&flag != 0 }
		adopted = append(adopted, vkimpl.Adopted{
			Instance:            uintptr(unsafe.Pointer(d.instance)),
			PhysicalDevice:      uintptr(unsafe.Pointer(d.physical_device)),
			Device:              uintptr(unsafe.Pointer(d.device)),
			Queue:               uintptr(unsafe.Pointer(probed[i].queue.queue)),
			QueueFamily:         uint32(probed[i].queue.family),
			TransferQueue:       uintptr(unsafe.Pointer(probed[i].transfer.queue)),
			TransferFamily:      uint32(probed[i].transfer.family),
			GetInstanceProcAddr: uintptr(unsafe.Pointer(d.get_instance_proc_addr)),
			GetDeviceProcAddr:   uintptr(unsafe.Pointer(d.get_device_proc_addr)),
			Timeline:            has(C.VKCOMM_HAS_TIMELINE),
			DynamicIndexing:     has(C.VKCOMM_HAS_DYNAMIC_INDEXING),
			ExternalMemoryHost:  has(C.VKCOMM_HAS_EXTERNAL_MEMORY_HOST),
			ExternalSemaphoreFD: has(C.VKCOMM_HAS_EXTERNAL_SEMAPHORE_FD),
		})
	}
	return adopted
}

func callbacks() vkimpl.Callbacks {
	return vkimpl.Callbacks{
		Submit: uintptr(unsafe.Pointer(C.vkcomm_host.submit)),
		Log:    uintptr(unsafe.Pointer(C.vkcomm_host.log)),
	}
}

// order takes the first ordering into use that passes the self-test. On an
// error the ranks are released.
func (c *Comm) order() error {
	var devices []semaphores.Device
	for _, d := range c.ranks.Devices {
		devices = append(devices, semaphores.Device{DriverUUID: d.DriverUUID, Shareable: d.TimelineShareable})
	}
	kinds, why, err := semaphores.Choose(devices, c.config.Proxy)
	if err != nil {
		c.ranks.Close()
		return err
	}
	if why != "" {
		logf(levelDebug, "native ordering is not used: %s", why)
	}
	failed := errors.New("no ordering")
	for _, kind := range kinds {
		if err := c.ranks.Order(kind); err != nil {
			failed = fmt.Errorf("%s ordering: %w", kind, err)
			logf(levelWarn, "%v", failed)
			continue
		}
		if c.half, err = selfTest(c.ranks); err != nil {
			failed = fmt.Errorf("%s ordering: self-test: %w", kind, err)
			logf(levelWarn, "%v", failed)
			if !idle(c.ranks, releaseTimeout) {
				return failed // in use for ever: leaked rather than freed
			}
			continue
		}
		return nil
	}
	c.ranks.Close()
	return failed
}

// selectAlgorithms decides which algorithm serves which size, and allocates what the
// choice needs beyond staging.
func (c *Comm) selectAlgorithms() error {
	var forced bool
	c.choose, forced = newSelection(&c.config, len(c.ranks.Devices))
	if c.choose.usesWide() || c.ranks.TransferQueues() != 0 {
		if err := c.ranks.AllocateScratch(); err != nil {
			return err
		}
	}
	if c.config.Algo == nil || c.choose.wantsRelay() {
		c.openRelay()
	}
	if forced {
		return nil
	}
	rules, half, err := calibrate(c.ranks, c.choose.wire, c.half)
	if err != nil {
		logf(levelDebug, "calibration: %v", err)
	} else {
		c.choose.rules, c.choose.source = rules, "measured"
	}
	c.half = half
	return nil
}

// openRelay takes the relay into use if the devices can do it and it passes its
// self-test. Without it, semaphores do.
func (c *Comm) openRelay() {
	level := levelDebug
	if c.config.Algo != nil {
		level = levelWarn // it was asked for
	}
	if err := c.ranks.OpenRelay(); err != nil {
		logf(level, "no relay: %v", err)
		return
	}
	if err := testRelay(c.ranks); err != nil {
		logf(level, "no relay: self-test: %v", err)
		c.ranks.CloseRelay()
		return
	}
	host, device := c.ranks.RelayBytes()
	logf(levelDebug, "relay: %d bytes of host memory and %d bytes of host-visible device memory a rank", host, device)
	c.choose.relay = true
}

// register makes the handle and lets the host's synchronisations cover our work.
func (c *Comm) register(backends []*C.struct_ggml_backend, probed []C.struct_vkcomm_rank) {
	c.c = (*C.struct_vkcomm_comm)(C.calloc(1, C.sizeof_struct_vkcomm_comm))
	c.c.world = C.uint32_t(len(backends))
	for i, b := range backends {
		c.c.devices[i] = probed[i].device.device
		function, argument := c.ranks.DrainCallback(i)
		C.sync_start(&c.c.sync[i], b, C.uintptr_t(function), C.uintptr_t(argument))
	}
}

// describe is the line that proves that the communicator is active.
func (c *Comm) describe(took time.Duration, overrides []string) string {
	var names []string
	for i, d := range c.ranks.Devices {
		names = append(names, fmt.Sprintf("%d=%s (%s)", i, d.Name, d.Driver))
	}
	set := ""
	if len(overrides) > 0 {
		set = "; set by environment: " + strings.Join(overrides, " ")
	}
	return fmt.Sprintf("AllReduce active: %d ranks [%s], %s ordering, staging %d MiB of host memory and %d bytes of device memory a rank, %s; self-tested in %d ms%s",
		len(names), strings.Join(names, ", "), c.ranks.Kind(), 2*c.ranks.HalfBytes()>>20, c.ranks.DeviceBytes(0), &c.choose, took.Milliseconds(), set)
}

// AllReduce sums the ranks' tensors, a ggml_tensor pointer array, in place.
// False: nothing was touched.
func AllReduce(handle, tensors unsafe.Pointer) bool {
	c := lookup(handle)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r := C.vkcomm_resolve(c.c, (**C.struct_ggml_tensor)(tensors)); {
	case c.broken:
		return c.refuse(reasonPanic, nil)
	case r == C.VKCOMM_EMPTY:
		return true
	case r != C.VKCOMM_ACCEPTED:
		return c.refuse(int(r), nil)
	}
	program, err := c.program()
	if err != nil {
		return c.refuse(reasonPlan, err)
	}
	if c.verify != nil {
		return c.reduceVerified(program)
	}
	return c.submit(program)
}

func (c *Comm) submit(program *vkimpl.Program) bool {
	c.submitting = true
	err := c.ranks.Submit(program)
	c.submitting = false
	if err != nil {
		return c.refuse(reasonSubmit, err)
	}
	c.half = nextHalf(c.half, program.Schedule)
	c.stats.count(program.Schedule)
	return true
}

// nextHalf is the staging half that is due after a schedule. A relay has halves
// of its own, and leaves those of the staging as they are.
func nextHalf(half int, s *allreduce.Schedule) int {
	if s.Algorithm == allreduce.AlgorithmRelay {
		return half
	}
	return (half + s.Rounds) % 2
}

// program returns the recorded program for the operands just resolved.
func (c *Comm) program() (*vkimpl.Program, error) {
	k := &c.key
	k.elements, k.zero, k.half = int64(c.c.elements), uint32(c.c.zero_ranks), uint32(c.half)
	for i := range int(c.c.world) {
		o := &c.c.operands[i]
		k.operands[i].generation, k.operands[i].offset = uint64(o.generation), uint64(o.offset)
	}
	if p := c.plans.get(k); p != nil {
		return p, nil
	}
	return c.record()
}

// record makes the program that the key asks for.
func (c *Comm) record() (*vkimpl.Program, error) {
	if c.plans.full() {
		if !idle(c.ranks, freeTimeout) {
			return nil, errors.New("the ranks' queues do not come to rest")
		}
		c.plans.evict()
	}
	schedule, err := c.build()
	if err != nil {
		return nil, err
	}
	program, err := c.ranks.Program(schedule, c.bindings())
	if err != nil {
		return nil, err
	}
	c.plans.put(&c.key, program)
	if c.config.Stats {
		c.stats.recorded()
	}
	return program, nil
}

// params describes a reduction to a builder.
func params(ranks *vkimpl.Ranks, choose *selection, algorithm string, elements int64, zero uint64, half int) allreduce.Params {
	bytes := 4 * elements
	return allreduce.Params{
		World: len(ranks.Devices), Elements: elements, Wire: choose.wireFor(bytes), ZeroRanks: zero,
		Half: half, HalfBytes: ranks.HalfBytes(), ChunkBytes: choose.chunkBytes(algorithm, bytes, ranks.ChunkBytes()),
		TransferQueue: ranks.TransferQueues()}
}

// build makes the schedule that the key asks for. Staging too small for an
// algorithm with a slot a rank is not too small for single-shot.
func (c *Comm) build() (*allreduce.Schedule, error) {
	k := &c.key
	algorithm := c.choose.algorithm(4 * k.elements)
	schedule, err := allreduce.Build(algorithm, params(c.ranks, &c.choose, algorithm, k.elements, uint64(k.zero), c.half))
	if err != nil {
		algorithm = allreduce.AlgorithmSingleShot
		schedule, err = allreduce.Build(algorithm, params(c.ranks, &c.choose, algorithm, k.elements, uint64(k.zero), c.half))
	}
	return schedule, err
}

func (c *Comm) bindings() []vkimpl.Binding {
	bindings := make([]vkimpl.Binding, c.c.world)
	for i := range bindings {
		o := &c.c.operands[i]
		bindings[i] = vkimpl.Binding{Buffer: uintptr(unsafe.Pointer(o.buffer)), Offset: uint64(o.offset), Size: uint64(o.size)}
	}
	return bindings
}

// refuse counts a reduction that the host is to do, and says so the first time
// that a reason occurs.
func (c *Comm) refuse(reason int, err error) bool {
	if c.stats.refused[reason]++; c.stats.refused[reason] == 1 {
		detail := ""
		if err != nil {
			detail = ": " + err.Error()
		}
		logf(levelWarn, "a reduction is left to llama.cpp, %s%s (logged once)", textOf(reason), detail)
	}
	return false
}

// InitPanicked takes note of a panic in Init or Free.
func InitPanicked(cause any) unsafe.Pointer {
	logf(levelError, "internal error: %v\n%s", cause, debug.Stack())
	return nil
}

// Panicked takes note of a panic in AllReduce and returns what to answer.
func Panicked(handle unsafe.Pointer, cause any) bool {
	c := lookup(handle)
	logf(levelError, "internal error: %v\n%s", cause, debug.Stack())
	if c.submitting {
		c.ranks.Fatal("an internal error occurred and the AllReduce", 0)
	}
	c.broken = true
	return false
}

// Free waits for the communicator's own work and releases it.
func Free(handle unsafe.Pointer) {
	c := lookup(handle)
	if c.config.Stats {
		c.stats.log(c)
	}
	for i := range int(c.c.world) {
		C.sync_stop(&c.c.sync[i])
	}
	withdraw(c)
	if c.stats.calls > 0 && !idle(c.ranks, freeTimeout) {
		logf(levelError, "a communicator's work did not end in %v; its memory is not freed", freeTimeout)
		return
	}
	c.plans.close()
	c.verify.close()
	c.ranks.Close()
	C.free(unsafe.Pointer(c.c))
}

// idle waits until all ranks' queues have done everything submitted so far.
func idle(ranks *vkimpl.Ranks, timeout time.Duration) bool {
	for rank := range ranks.Devices {
		if ok, err := ranks.Drain(rank, timeout); !ok || err != nil {
			return false
		}
	}
	return true
}
