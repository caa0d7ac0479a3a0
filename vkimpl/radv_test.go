package vkimpl

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"ggmlvkcomm/allreduce"
)

// AMD's compiler on hardware that is not there: RADV_FORCE_FAMILY makes a device
// of any family, whose properties answer and whose pipelines are compiled. No
// fence, no semaphore and no host memory can be had from it, so nothing runs.

// openRADV makes world devices of the family that the environment forces.
func openRADV(t *testing.T, world int) *Standalone {
	t.Helper()
	family := os.Getenv("RADV_FORCE_FAMILY")
	if family == "" {
		t.Skip("needs RADV_FORCE_FAMILY and RADV's ICD: build/checks/radv")
	}
	s, err := OpenStandalone(make([]int, world), StandaloneOptions{})
	must(t, err)
	t.Cleanup(s.Close)
	if name := s.Physical[0].Name; !strings.Contains(name, "RADV "+family) {
		t.Fatalf("the device is %q, want one of the family %s", name, family)
	}
	return s
}

// pretend gives the devices what null hardware lacks and real hardware has.
func pretend(s *Standalone) []Adopted {
	adopted := slices.Clone(s.Adopted)
	for i := range adopted {
		adopted[i].ExternalMemoryHost = true
	}
	return adopted
}

// kernelsOf are the kernels that a rank of a communicator can come to need, as
// the executor derives them from schedules.
func kernelsOf(t *testing.T, world, rank int) map[kernel]bool {
	t.Helper()
	kernels := map[kernel]bool{relayKernel(world, rank, true): true, relayKernel(world, rank, false): true}
	for _, algorithm := range allreduce.Algorithms() {
		for _, wire := range allWires {
			for _, mask := range masks(world) {
				for _, transfer := range masks(world) {
					s, err := allreduce.Build(algorithm, allreduce.Params{World: world, Elements: 20000, Wire: wire,
						HalfBytes: 32 << 10, ZeroRanks: mask, TransferQueue: transfer})
					must(t, err)
					for i := range s.Batches {
						addKernels(kernels, &s.Batches[i], rank, wire)
					}
				}
			}
		}
	}
	return kernels
}

func addKernels(kernels map[kernel]bool, b *allreduce.Batch, rank int, wire allreduce.Wire) {
	if b.Rank != rank || b.Queue == allreduce.Transfer {
		return
	}
	for i := range b.Steps {
		if b.Steps[i].Op != allreduce.Copy {
			kernels[kernelOf(rank, &b.Steps[i], wire)] = true
		}
	}
}

// compile builds every pipeline that the ranks can need, and returns how many.
func compile(t *testing.T, r *Ranks) (built int) {
	t.Helper()
	for rank, d := range r.Devices {
		for k := range kernelsOf(t, len(r.Devices), rank) {
			if _, err := d.pipeline(k); err != nil {
				t.Fatalf("%d ranks, rank %d, kernel %+v: %v", len(r.Devices), rank, k, err)
			}
			built++
		}
	}
	return built
}

func TestRADVBuildsEveryKernel(t *testing.T) {
	shaders, err := spirv.ReadDir("shaders")
	must(t, err)
	worlds := []int{2, 3, 5, 8, allreduce.MaxWorld}
	if testing.Short() {
		worlds = worlds[:2]
	}
	for _, world := range worlds {
		s := openRADV(t, world)
		for _, keep := range []bool{false, true} {
			r, err := Open(pretend(s), s.Callbacks)
			must(t, err)
			for _, d := range r.Devices {
				d.keepDenormals = keep && d.limits.denormPreserve32 // as beside another driver
			}
			t.Logf("%d ranks: %d pipelines with float modes %v", world, compile(t, r), r.Devices[0].floatModes())
			if used := len(r.Devices[0].modules); used != len(shaders) {
				t.Errorf("%d ranks: rank 0 builds %d of %d shaders", world, used, len(shaders))
			}
			r.Close()
		}
	}
}

// What the plugin makes of such a device: it names what is missing, and takes
// from the properties what a kernel may do.
func TestRADVDecisions(t *testing.T) {
	s := openRADV(t, 2)
	if s.Adopted[0].ExternalMemoryHost {
		t.Error("null hardware imports host memory: the test no longer shows a refusal")
	}
	if _, err := Open(s.Adopted, s.Callbacks); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "rank 0 cannot import host memory") {
		t.Errorf("Open without host import: %v", err)
	}
	r, err := Open(pretend(s), s.Callbacks)
	must(t, err)
	defer r.Close()
	d := r.Devices[0]
	t.Logf("%s: %+v, timelines can be shared: %v", d.Name, d.limits, d.TimelineShareable)
	if d.OnCPU || !d.readsWordsWhole() || relayKernel(2, 0, d.readsWordsWhole()).publish != 0 {
		t.Errorf("on CPU %v, vendor %#x: the relay's kernel would fence its polls on AMD", d.OnCPU, d.VendorID)
	}
	// 16-bit wires are packed into words by the kernels: nothing that RADV
	// might lack is asked for, save float modes, which only a limit lets in.
	modes := d.floatModes()
	for _, m := range []struct {
		able bool
		mode floatMode
	}{{d.limits.roundToEven16, roundToEven16}, {d.limits.denormPreserve16, denormPreserve16}} {
		if slices.Contains(modes, m.mode) != m.able {
			t.Errorf("mode %+v is in %v, the device is able: %v", m.mode, modes, m.able)
		}
	}
	if slices.Contains(modes, denormPreserve32) {
		t.Errorf("ranks of one driver keep float32 denormals by mode: %v", modes)
	}
}
