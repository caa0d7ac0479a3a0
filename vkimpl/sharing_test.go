package vkimpl

import (
	"slices"
	"strings"
	"testing"
)

// What drivers answer about storage buffers. Software and NVIDIA as seen on the
// devices, Mesa from its sources.
var (
	both = offer{exportable: true, importable: true}
	// Mesa, src/amd/vulkan/radv_formats.c, radv_GetPhysicalDeviceExternalBufferProperties:
	// EXPORTABLE | IMPORTABLE for either handle type; seen as well with RADV_FORCE_FAMILY
	// (Mesa 22.3, by TestDevicesSayWhatTheyShare).
	radv = sharer{memoryFD: true, dmaBuf: true, offers: [3]offer{OpaqueFD: both, DMABuf: both}, driverUUID: [16]byte{'r'}}
	// Mesa, src/intel/vulkan/anv_formats.c, anv_GetPhysicalDeviceExternalBufferProperties,
	// prime_fd_props: "if we can handle external, then we can both import and export it".
	anv = sharer{memoryFD: true, dmaBuf: true, offers: [3]offer{OpaqueFD: both, DMABuf: both}, driverUUID: [16]byte{'a'}}
	// NVIDIA 580.159 on H200, by TestDevicesSayWhatTheyShare: no
	// VK_EXT_external_memory_dma_buf, and an export all the same fails.
	nvidia = sharer{memoryFD: true, offers: [3]offer{OpaqueFD: both}, driverUUID: [16]byte{'n'}}
	// NVIDIA where the extension is there: what it says it can do then fails in
	// vkGetMemoryFdKHR (VkResult -2) or with memoryTypeBits 0 (TestImportType).
	nvidiaDRM = sharer{memoryFD: true, dmaBuf: true, offers: [3]offer{OpaqueFD: both, DMABuf: both}, driverUUID: [16]byte{'n'}}
	// Mesa 22.3, src/gallium/frontends/lavapipe/lvp_formats.c: OPAQUE_FD alone
	// (PIPE_MEMORY_FD), and no VK_EXT_external_memory_dma_buf.
	lavapipe = sharer{memoryFD: true, offers: [3]offer{OpaqueFD: both}, driverUUID: [16]byte{'l'}}
)

// at puts a driver's answers on device number i.
func at(s sharer, i byte) sharer {
	s.deviceUUID[15] = i
	return s
}

func TestHandleOfPairs(t *testing.T) {
	changed := func(s sharer, change func(*sharer)) sharer { change(&s); return s }
	for _, c := range []struct {
		name        string
		owner, peer sharer
		want        Handle
		why         string
	}{
		{"two AMD GPUs", at(radv, 1), at(radv, 2), DMABuf, ""},
		{"two Intel GPUs", at(anv, 1), at(anv, 2), DMABuf, ""},
		{"AMD and Intel", at(radv, 1), at(anv, 2), DMABuf, ""},
		{"one AMD GPU twice", at(radv, 1), at(radv, 1), OpaqueFD, ""},
		{"one GPU, two drivers", at(radv, 1), at(anv, 1), DMABuf, ""},
		{"lavapipe twice", at(lavapipe, 1), at(lavapipe, 1), OpaqueFD, ""},
		{"lavapipe and AMD", at(lavapipe, 1), at(radv, 2), HostMemory, "VK_EXT_external_memory_dma_buf is missing"},
		{"two NVIDIA GPUs", at(nvidia, 1), at(nvidia, 2), HostMemory, "VK_EXT_external_memory_dma_buf is missing"},
		{"two NVIDIA GPUs with the extension, as far as answers go", at(nvidiaDRM, 1), at(nvidiaDRM, 2), DMABuf, ""},
		{"AMD and NVIDIA", at(radv, 1), at(nvidia, 2), HostMemory, "VK_EXT_external_memory_dma_buf is missing"},
		{"no memory fd", at(changed(radv, func(s *sharer) { s.memoryFD = false }), 1), at(radv, 2), HostMemory, "VK_KHR_external_memory_fd is missing"},
		{"no export", at(changed(nvidiaDRM, func(s *sharer) { s.offers[DMABuf].exportable = false }), 1), at(nvidiaDRM, 2), HostMemory, "does not export"},
		{"no import", at(radv, 1), at(changed(nvidiaDRM, func(s *sharer) { s.offers[DMABuf].importable = false }), 2), HostMemory, "does not import"},
	} {
		h, why := handleFor(&c.owner, &c.peer)
		if h != c.want || (c.why == "") != (why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: %v, %q; want %v, %q", c.name, h, why, c.want, c.why)
		}
	}
}

// An owner writes to one place, so one handle type has to serve all its peers.
func TestExportServesAllPeers(t *testing.T) {
	for _, c := range []struct {
		name string
		all  []sharer
		want []Handle
	}{
		{"three of lavapipe", []sharer{lavapipe, lavapipe, lavapipe}, []Handle{OpaqueFD, OpaqueFD, OpaqueFD}},
		{"an AMD GPU twice and another", []sharer{at(radv, 1), at(radv, 1), at(radv, 2)}, []Handle{DMABuf, DMABuf, DMABuf}},
		{"one that cannot", []sharer{at(radv, 1), at(radv, 2), at(lavapipe, 3)}, []Handle{HostMemory, HostMemory, HostMemory}},
		{"one that only reads", []sharer{at(radv, 1), at(radv, 2),
			at(sharer{memoryFD: true, dmaBuf: true, offers: [3]offer{DMABuf: {importable: true}}}, 3)}, []Handle{DMABuf, DMABuf, HostMemory}},
	} {
		for owner := range c.all {
			if h := exportAs(owner, c.all); h != c.want[owner] {
				t.Errorf("%s: rank %d exports as %v, want %v", c.name, owner, h, c.want[owner])
			}
		}
	}
}

func TestPairsNameThePeerThatCannot(t *testing.T) {
	row, failures := pairs(1, []sharer{at(radv, 1), at(radv, 2), at(lavapipe, 3)})
	if !slices.Equal(row, []Handle{DMABuf, HostMemory, HostMemory}) || len(failures) != 1 {
		t.Fatal(row, failures)
	}
	if got := failures[0].Error(); got != "staging of rank 1 for rank 2: VK_EXT_external_memory_dma_buf is missing" {
		t.Error(got)
	}
}

func TestImportType(t *testing.T) {
	for _, c := range []struct {
		need, fromFD, want uint32
		err                string
	}{
		{0b1111, 0b0100, 2, ""},                    // what the exporter's kernel driver placed it as
		{0b0111, 0xffffffff, 0, ""},                // a driver that takes any
		{0b1111, 0, 0, "memoryTypeBits 0"},         // NVIDIA
		{0b0011, 0b1100, 0, "both for the buffer"}, // nothing in common
	} {
		got, err := importType(c.need, c.fromFD)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("need %#b, descriptor %#b: %d, %v", c.need, c.fromFD, got, err)
		}
	}
}
