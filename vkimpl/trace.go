package vkimpl

// #include "executor.h"
// #include "trace.h"
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	vk "github.com/goki/vulkan"

	"ggmlvkcomm/allreduce"
)

// Span is when one batch of a program ran, on CLOCK_MONOTONIC: from the moment
// that its waits were over to the end of its last barrier.
type Span struct {
	Batch      int // index into Schedule.Batches; of a relay the rank
	Rank       int
	Queue      allreduce.Queue
	Begin, End time.Duration
}

// trace is a traced program's: a query pool a rank, with two stamps a batch.
type trace struct {
	pools  []C.VkQueryPool // by rank
	stamps [][]int         // by rank: the batch of each pair
}

// SetTrace lets programs that are recorded from now on note when their batches
// run. It needs VK_EXT_calibrated_timestamps, which only Standalone asks for.
func (r *Ranks) SetTrace(on bool) { r.tracing = on }

// startTrace makes room for so many batches on every rank.
func (p *Program) startTrace(batches int) error {
	p.trace = &trace{pools: make([]C.VkQueryPool, len(p.ranks.Devices)), stamps: make([][]int, len(p.ranks.Devices))}
	for rank, d := range p.ranks.Devices {
		result := C.vkcomm_trace_pool(d.vk, C.uint32_t(2*batches), &p.trace.pools[rank])
		if err := check("vkCreateQueryPool for timestamps", rank, vk.Result(result)); err != nil {
			return err
		}
	}
	return nil
}

func (p *Program) closeTrace() {
	if p.trace == nil {
		return
	}
	for rank, d := range p.ranks.Devices {
		vk.DestroyQueryPool(d.handle, as[vk.QueryPool](raw(p.trace.pools[rank])), nil)
	}
}

// stamps of the batch that rank records next; none where nothing is traced.
func (p *Program) nextStamps(rank, batch int) (s C.struct_vkcomm_stamps) {
	if t := p.trace; t != nil {
		s = C.struct_vkcomm_stamps{pool: t.pools[rank], first: C.uint32_t(2 * len(t.stamps[rank]))}
		t.stamps[rank] = append(t.stamps[rank], batch)
	}
	return s
}

// Spans is when the batches of the program's latest submission ran, which is
// over; batches without steps are left out.
func (p *Program) Spans() (spans []Span, err error) {
	if p.trace == nil {
		return nil, fmt.Errorf("the program was recorded without SetTrace")
	}
	for rank, d := range p.ranks.Devices {
		batches := p.trace.stamps[rank]
		if len(batches) == 0 {
			continue
		}
		stamps := make([]C.uint64_t, 2*len(batches))
		result := C.vkcomm_trace_read(d.vk, p.trace.pools[rank], C.uint32_t(len(stamps)), unsafe.SliceData(stamps))
		if err := check("vkGetQueryPoolResults", rank, vk.Result(result)); err != nil {
			return nil, err
		}
		clock, err := d.calibrate()
		if err != nil {
			return nil, err
		}
		for i, batch := range batches {
			s := Span{Batch: batch, Rank: rank, Begin: clock.at(stamps[2*i]), End: clock.at(stamps[2*i+1])}
			if p.Schedule.Algorithm != allreduce.AlgorithmRelay {
				s.Queue = p.Schedule.Batches[batch].Queue
			}
			spans = append(spans, s)
		}
	}
	return spans, nil
}

// deviceClock relates a device's timestamps to CLOCK_MONOTONIC.
type deviceClock struct {
	device, host C.uint64_t
	period       float64 // ns a tick
	unused       uint32  // upper bits of a timestamp that are always 0
}

func (d *Device) calibrate() (c deviceClock, err error) {
	result := C.vkcomm_trace_clocks(d.vk, &c.device, &c.host)
	var properties vk.PhysicalDeviceProperties
	vk.GetPhysicalDeviceProperties(d.physical, &properties)
	properties.Deref()
	properties.Limits.Deref()
	c.period = float64(properties.Limits.TimestampPeriod)
	properties.Free()
	var count uint32
	vk.GetPhysicalDeviceQueueFamilyProperties(d.physical, &count, nil)
	families := make([]vk.QueueFamilyProperties, count)
	vk.GetPhysicalDeviceQueueFamilyProperties(d.physical, &count, families)
	families[d.adopted.QueueFamily].Deref()
	c.unused = 64 - families[d.adopted.QueueFamily].TimestampValidBits
	return c, check("vkGetCalibratedTimestampsEXT", d.rank, vk.Result(result))
}

// at is the host's time of a stamp that is not far from the calibration.
func (c *deviceClock) at(stamp C.uint64_t) time.Duration {
	ticks := int64((stamp-c.device)<<c.unused) >> c.unused
	return time.Duration(c.host) + time.Duration(float64(ticks)*c.period)
}
