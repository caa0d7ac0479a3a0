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
// static struct vkcomm_team *team_start(struct vkcomm_comm *comm, struct ggml_backend *const *backends, bool threads) {
//     return vkcomm_host->team_start(comm, backends, comm->world, threads);
// }
//
// static struct vkcomm_team_stats team_stop(struct vkcomm_team *team) {
//     struct vkcomm_team_stats stats = { 0 };
//     vkcomm_host->team_stop(team, &stats);
//     return stats;
// }
//
// static void sync_stop(struct vkcomm_sync *s) { vkcomm_host->sync_remove(s); }
import "C"

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

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
	p2p    peerStaging
	team   *C.struct_vkcomm_team // nil: none
	// submitting is set from a reduction's first submission until all is
	// booked: a panic then cannot be answered with "not done".
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
	if config.P2P {
		if err := c.moveStaging(); err != nil {
			c.ranks.Release() // also ends the proxies
			return nil, err   // in use for ever: leaked rather than freed
		}
	}
	if err := c.selectAlgorithms(); err != nil {
		c.abandon()
		return nil, err
	}
	if config.Check {
		if c.verify, err = newVerifier(c.ranks); err != nil {
			c.ranks.Close()
			return nil, err
		}
	}
	if err := c.ranks.Failed(); err != nil {
		c.abandon()
		return nil, err
	}
	if !c.ranks.Use() {
		logf(levelWarn, "no memory or thread to watch the devices: should one be lost, llama.cpp may wait for ever")
	}
	c.register(backends, probed)
	return c, nil
}

// abandon releases ranks that may have work under way which cannot end by itself.
func (c *Comm) abandon() {
	c.ranks.Release()
	if idle(c.ranks, releaseTimeout) {
		c.ranks.Close() // else in use for ever: leaked rather than freed
	}
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
			ExternalMemoryFD:    has(C.VKCOMM_HAS_EXTERNAL_MEMORY_FD),
			DMABuf:              has(C.VKCOMM_HAS_EXTERNAL_DMA_BUF),
			QueueFamilyForeign:  has(C.VKCOMM_HAS_QUEUE_FAMILY_FOREIGN),
		})
	}
	return adopted
}

func callbacks() vkimpl.Callbacks {
	return vkimpl.Callbacks{
		Submit: uintptr(unsafe.Pointer(C.vkcomm_host.submit)),
		Log:    uintptr(unsafe.Pointer(C.vkcomm_host.log)),
		Hold:   uintptr(unsafe.Pointer(C.vkcomm_host.hold)),
		Flush:  uintptr(unsafe.Pointer(C.vkcomm_host.flush)),
	}
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
	if c.config.Parallel || c.config.Stats {
		c.team = C.team_start(c.c, unsafe.SliceData(backends), C.bool(c.config.Parallel))
	}
	if c.config.Parallel && c.team == nil {
		logf(levelWarn, "no memory or threads to record the ranks' graphs in parallel; one after the other, as llama.cpp does")
	}
}

// describe is the line that proves that the communicator is active.
func (c *Comm) describe(took time.Duration, overrides []string) string {
	var names []string
	for i, d := range c.ranks.Devices {
		names = append(names, fmt.Sprintf("%d=%s (%s)", i, d.Name, d.Driver))
	}
	set := ""
	if c.config.Parallel && c.team != nil {
		set = "; graphs recorded in parallel"
	}
	if len(overrides) > 0 {
		set += "; set by environment: " + strings.Join(overrides, " ")
	}
	return fmt.Sprintf("AllReduce active: %d ranks [%s], %s ordering, staging %d MiB of %s and %d bytes of device memory a rank, %s; self-tested in %d ms%s",
		len(names), strings.Join(names, ", "), c.ranks.Kind(), 2*c.ranks.HalfBytes()>>20, c.stagingText(), c.ranks.DeviceBytes(0), &c.choose, took.Milliseconds(), set)
}

// InitPanicked takes note of a panic in Init or Free.
func InitPanicked(cause any) unsafe.Pointer {
	logf(levelError, "internal error: %v\n%s", cause, debug.Stack())
	return nil
}

// Free waits for the communicator's own work and releases it.
func Free(handle unsafe.Pointer) {
	c := lookup(handle)
	if c.team != nil {
		team := C.team_stop(c.team)
		c.stats.parts, c.stats.partSeconds = uint64(team.parts), 1e-9*float64(team.ns)
	}
	if c.config.Stats {
		c.stats.log(c)
	}
	for i := range int(c.c.world) {
		C.sync_stop(&c.c.sync[i])
	}
	withdraw(c)
	c.ranks.Leave() // what drain meets is no reason to end the process
	if c.stats.calls > 0 {
		if err := drain(c.ranks, freeTimeout); err != nil {
			logf(levelError, "a communicator's work did not end (%v); its memory is not freed", err)
			return
		}
	}
	c.plans.close()
	c.verify.close()
	c.ranks.Close()
	C.free(unsafe.Pointer(c.c))
}

// idle waits until all ranks' queues have done everything submitted so far.
func idle(ranks *vkimpl.Ranks, timeout time.Duration) bool { return drain(ranks, timeout) == nil }

// drain is idle with the reason.
func drain(ranks *vkimpl.Ranks, timeout time.Duration) error {
	for rank := range ranks.Devices {
		switch ok, err := ranks.Drain(rank, timeout); {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("rank %d is not at rest after %v", rank, timeout)
		}
	}
	return nil
}
