package vkimpl

// Tests of memory that leaves a device, where the driver lets it: lavapipe does,
// between devices of one physical device.

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/semaphores"
)

// openP2P is openRig with all staging in device memory, or skips the test.
func openP2P(t *testing.T, world int) *rig {
	t.Helper()
	g := openRig(t, world, staging, tensorFloats)
	possible, failures := g.OpenP2P()
	if len(failures) > 0 {
		t.Skipf("no peer-to-peer staging: %v", failures[0])
	}
	for owner, row := range possible {
		for peer, h := range row {
			if (h == HostMemory) != (owner == peer) {
				t.Fatalf("ranks %d and %d: %v, and nothing failed", owner, peer, h)
			}
		}
	}
	return g
}

func TestP2PMatchesTheSimulator(t *testing.T) {
	g := openP2P(t, 3)
	g.SettleP2P() // whatever still reads host memory would crash
	rng := seeded(31)
	for _, algorithm := range allreduce.Algorithms() {
		for _, wire := range allWires {
			g.compare(g.everyShape(algorithm, wire), rng)
		}
	}
}

// An owner that goes back takes part as before, beside others that do not.
func TestP2POfSomeRanksMatchesTheSimulator(t *testing.T) {
	g := openP2P(t, 3)
	g.LeaveP2P(1)
	if g.StagingHandle(1) != HostMemory || g.StagingHandle(0) == HostMemory {
		t.Fatal(g.StagingHandle(0), g.StagingHandle(1))
	}
	g.LeaveP2P(1) // twice is once
	g.SettleP2P()
	c := &chain{g: g}
	rng := seeded(32)
	c.mixed(24, rng)
	g.compare(c.seq, rng)
}

// What follows a self-test that failed with P2P in use.
func TestStagingGoesBackAfterARelease(t *testing.T) {
	g := openP2P(t, 2)
	g.Release()
	g.drain()
	for owner := range g.world {
		g.LeaveP2P(owner)
	}
	must(t, g.Order(semaphores.Proxy))
	c := &chain{g: g}
	rng := seeded(33)
	c.mixed(8, rng)
	g.compare(c.seq, rng)
}

func TestP2PReadsAreTimed(t *testing.T) {
	g := openP2P(t, 2)
	sink, _, err := g.DeviceBuffer(0, staging/4)
	must(t, err)
	defer sink.Close()
	for _, host := range []bool{true, false} {
		speed, err := g.ReadSpeed(0, 1, host, sink, drainTimeout)
		must(t, err)
		if speed <= 0 {
			t.Errorf("host memory %v: %g bytes/s", host, speed)
		}
	}
}

func TestP2PLeavesNothingBehind(t *testing.T) {
	openP2P(t, 2) // or skips
	s := openDevices(t, 3, StandaloneOptions{})
	flat(t, 200, func() {
		r, err := Open(s.Adopted, s.Callbacks)
		must(t, err)
		must(t, r.ImportStaging(staging))
		must(t, r.Order(semaphores.Proxy))
		r.OpenP2P()
		if r.DeviceBytes(0) == 0 {
			t.Error("exported memory is not counted")
		}
		r.LeaveP2P(2)
		r.SettleP2P()
		r.Close()
	})
}

// openFiles counts descriptors, the one that counts them included.
func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(files)
}

func TestAFailedImportClosesItsDescriptorOnce(t *testing.T) {
	g := openP2P(t, 2)
	own, err := g.Devices[0].exportable(staging, OpaqueFD, false)
	must(t, err)
	defer own.Close()
	before := openFiles(t)
	for range 10 {
		b, err := g.Devices[1].importDescriptor(own, badDescriptor(t), false)
		var failed *Error
		if !errors.As(err, &failed) || !strings.Contains(err.Error(), "vkAllocateMemory to import on rank 1") {
			t.Errorf("import of a pipe: %v", err)
		}
		b.Close()
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

// badDescriptor is one that no driver takes for memory.
func badDescriptor(t *testing.T) int {
	t.Helper()
	var ends [2]int
	must(t, unix.Pipe2(ends[:], unix.O_CLOEXEC))
	must(t, unix.Close(ends[1]))
	return ends[0]
}

func TestAnImportLargerThanItsExportIsRefused(t *testing.T) {
	g := openP2P(t, 2)
	own, err := g.Devices[0].exportable(staging, OpaqueFD, false)
	must(t, err)
	defer own.Close()
	before := openFiles(t)
	claimed := *own
	larger := *own.Buffer
	larger.size *= 2
	claimed.Buffer = &larger
	if b, err := g.Devices[1].importFrom(&claimed, false); err == nil || !errors.Is(err, ErrUnsupported) {
		b.Close()
		t.Errorf("import: %v", err)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func TestWithoutTheExtensionStagingStays(t *testing.T) {
	s := openDevices(t, 2, StandaloneOptions{})
	s.Adopted[1].ExternalMemoryFD = false
	r, err := Open(s.Adopted, s.Callbacks)
	must(t, err)
	defer r.Close()
	must(t, r.ImportStaging(staging))
	before := openFiles(t)
	_, failures := r.OpenP2P()
	if len(failures) != 2 || !strings.Contains(failures[0].Error(), "rank 0 for rank 1: VK_KHR_external_memory_fd is missing") {
		t.Error(failures)
	}
	if r.StagingHandle(0) != HostMemory || r.DeviceBytes(0) != 0 || openFiles(t) != before {
		t.Errorf("%v, %d bytes, %d descriptors, %d before", r.StagingHandle(0), r.DeviceBytes(0), openFiles(t), before)
	}
}

// What every device at hand answers, for comparison with what sharing_test.go has
// recorded.
func TestDevicesSayWhatTheyShare(t *testing.T) {
	s := openDevices(t, 1, StandaloneOptions{})
	s.Adopted[0].ExternalMemoryHost = true // not needed here, and RADV on null hardware has none
	r, err := Open(s.Adopted, s.Callbacks)
	must(t, err)
	defer r.Close()
	d := r.Devices[0]
	a := d.sharer()
	t.Logf("%s (%s): memory fd %v, dma-buf %v, foreign queue family %v, opaque_fd %+v, dma_buf %+v", d.Name, d.Driver,
		a.memoryFD, a.dmaBuf, d.adopted.QueueFamilyForeign, a.offers[OpaqueFD], a.offers[DMABuf])
	for h := range handleBits {
		e, err := d.exportable(staging, h, a.offers[h].dedicatedOnly)
		if err != nil {
			t.Logf("%v: %v", h, err)
			continue
		}
		b, err := d.importFrom(e, a.offers[h].dedicatedOnly)
		t.Logf("%v: memory type %d of %#x, dedicated %v; imported by itself: %v", h, e.external._type, e.external.type_bits,
			e.external.dedicated, err)
		b.Close()
		e.Close()
	}
}
