package vkimpl

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/semaphores"
)

func TestTooManyRanksAreRefused(t *testing.T) {
	_, err := Open(make([]Adopted, allreduce.MaxWorld+1), Callbacks{})
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "17 ranks, at most 16") {
		t.Fatalf("Open of 17 ranks: %v", err)
	}
}

// lacks names what a device needs and how to take it away.
var lacks = []struct {
	text string
	take func(*Adopted)
}{
	{"has no timeline semaphores", func(a *Adopted) { a.Timeline = false }},
	{"cannot import host memory", func(a *Adopted) { a.ExternalMemoryHost = false }},
	{"has no shaderStorageBufferArrayDynamicIndexing", func(a *Adopted) { a.DynamicIndexing = false }},
}

func TestAMissingFeatureNamesItsRank(t *testing.T) {
	s := openDevices(t, 3, StandaloneOptions{})
	for _, l := range lacks {
		adopted := append([]Adopted(nil), s.Adopted...)
		l.take(&adopted[2])
		_, err := Open(adopted, s.Callbacks)
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "rank 2 "+l.text) {
			t.Errorf("%v, want: rank 2 %s", err, l.text)
		}
	}
}

func TestUnsharedTimelinesAreNotShared(t *testing.T) {
	s := openDevices(t, 2, StandaloneOptions{})
	for i := range s.Adopted {
		s.Adopted[i].ExternalSemaphoreFD = false
	}
	r, err := Open(s.Adopted, s.Callbacks)
	must(t, err)
	defer r.Close()
	var devices []semaphores.Device
	for rank, d := range r.Devices {
		if d.TimelineShareable {
			t.Errorf("rank %d could share timelines without VK_KHR_external_semaphore_fd", rank)
		}
		devices = append(devices, semaphores.Device{DriverUUID: d.DriverUUID, Shareable: d.TimelineShareable})
	}
	kinds, why, err := semaphores.Choose(devices, semaphores.Auto)
	must(t, err)
	if len(kinds) != 1 || kinds[0] != semaphores.Proxy || !strings.Contains(why, "rank 0") {
		t.Errorf("orderings %v, because %q; want proxy alone", kinds, why)
	}
}

// counts are what the kernel knows of this process.
type counts struct{ files, threads int }

func countNow(t *testing.T) counts {
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	threads, err := os.ReadDir("/proc/self/task")
	must(t, err)
	return counts{len(files), len(threads)}
}

// flat runs f some times, and fails when descriptors or threads become more
// than they were after the first few runs. Threads get a moment to end.
func flat(t *testing.T, times int, f func()) {
	t.Helper()
	const warm = 5
	var before counts
	time.Sleep(time.Millisecond) // lets the Go runtime open the two files that its timers need, once
	for i := range times {
		if i == warm {
			before = countNow(t)
		}
		f()
	}
	after := countNow(t)
	for range 50 {
		if after.threads <= before.threads {
			break
		}
		time.Sleep(10 * time.Millisecond)
		after = countNow(t)
	}
	// The Go runtime may start a thread or two meanwhile.
	if after.files > before.files || after.threads > before.threads+3 {
		t.Errorf("after %d times more: %+v, before: %+v", times-warm, after, before)
	}
}

func TestOpenAndCloseLeaveNothingBehind(t *testing.T) {
	s := openDevices(t, 2, StandaloneOptions{AliasTransferQueue: true})
	flat(t, 200, func() {
		r, err := Open(s.Adopted, s.Callbacks)
		must(t, err)
		must(t, r.ImportStaging(staging))
		must(t, r.AllocateScratch())
		must(t, r.Order(semaphores.Proxy))
		must(t, r.Order(semaphores.Proxy)) // the first one gives way
		if r.DeviceBytes(0) == 0 {
			t.Error("scratch is not counted")
		}
		r.Close()
	})
}

func TestAFailedOpenLeavesNothingBehind(t *testing.T) {
	s := openDevices(t, 2, StandaloneOptions{})
	i := 0
	flat(t, 200, func() {
		adopted := append([]Adopted(nil), s.Adopted...)
		lacks[i%len(lacks)].take(&adopted[1])
		i++
		if r, err := Open(adopted, s.Callbacks); err == nil {
			r.Close()
			t.Error("Open succeeded")
		}
	})
}

func TestStandaloneDevicesLeaveNothingBehind(t *testing.T) {
	openDevices(t, 1, StandaloneOptions{})
	flat(t, 12, func() {
		s, err := OpenStandalone([]int{0, 0}, StandaloneOptions{})
		must(t, err)
		s.Close()
	})
}

func TestStandaloneNamesWhatItHas(t *testing.T) {
	s := openDevices(t, 1, StandaloneOptions{NoTransferQueue: true})
	for i, d := range s.Physical {
		t.Logf("%d: %s, %s, %s, Vulkan %s, transfer queue %v", i, d.Name, d.Driver, d.Kind, d.API, d.TransferQueue)
		if d.Name == "" || d.Driver == "" || d.API == "" {
			t.Errorf("device %d: %+v", i, d)
		}
	}
	if s.Adopted[0].TransferQueue != 0 {
		t.Error("a transfer queue was not wanted")
	}
	_, err := OpenStandalone([]int{0, len(s.Physical)}, StandaloneOptions{})
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "rank 1 ") {
		t.Errorf("a device that is not there: %v", err)
	}
}

// goki/vulkan frees what it passes to the driver in finalizers; see create.h.
func TestTheCollectorMayRunAtAnyTime(t *testing.T) {
	s := openDevices(t, 2, StandaloneOptions{})
	stop, done := make(chan struct{}), sync.WaitGroup{}
	done.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	defer done.Wait()
	defer close(stop)
	for range 5 {
		r, err := Open(s.Adopted, s.Callbacks)
		must(t, err)
		must(t, r.ImportStaging(staging))
		must(t, r.AllocateScratch())
		must(t, r.Order(semaphores.Proxy))
		var buffers []*Buffer
		var bindings []Binding
		for rank := range r.Devices {
			b, binding, err := r.HostBuffer(rank, 2000)
			must(t, err)
			buffers, bindings = append(buffers, b), append(bindings, binding)
		}
		var programs []*Program
		for _, wire := range allWires {
			for _, algorithm := range allreduce.Algorithms() {
				schedule, err := allreduce.Build(algorithm, allreduce.Params{World: 2, Elements: 2000, Wire: wire, HalfBytes: r.HalfBytes()})
				must(t, err)
				p, err := r.Program(schedule, bindings)
				must(t, err)
				must(t, r.Submit(p))
				programs = append(programs, p)
			}
		}
		for rank := range r.Devices {
			ok, err := r.Drain(rank, drainTimeout)
			must(t, err)
			if !ok {
				t.Fatal("not finished")
			}
		}
		for _, p := range programs {
			p.Close()
		}
		for _, b := range buffers {
			b.Close()
		}
		r.Close()
	}
}
