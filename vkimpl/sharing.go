package vkimpl

import (
	"errors"
	"fmt"
	"math/bits"
)

// Handle is how a rank's staging reaches its peers' devices.
type Handle uint8

const (
	HostMemory Handle = iota // pages that every device imports
	OpaqueFD                 // memory of the rank's device, for the same device and driver
	DMABuf                   // memory of the rank's device, for any device
)

func (h Handle) String() string {
	return [...]string{"host", "p2p opaque_fd", "p2p dma_buf"}[h]
}

// offer is what a device says of staging buffers and one handle type
// (VkExternalMemoryProperties).
type offer struct {
	exportable, importable, dedicatedOnly bool
}

// sharer is what decides how a device takes part in peer-to-peer staging.
type sharer struct {
	deviceUUID, driverUUID [16]byte
	memoryFD, dmaBuf       bool     // VK_KHR_external_memory_fd, VK_EXT_external_memory_dma_buf enabled
	offers                 [3]offer // by Handle
}

// refuses says why staging of owner cannot reach peer through h, or "".
func refuses(h Handle, owner, peer *sharer) string {
	switch {
	case !owner.memoryFD || !peer.memoryFD:
		return "VK_KHR_external_memory_fd is missing"
	case h == OpaqueFD && owner.deviceUUID != peer.deviceUUID:
		return "opaque_fd does not leave its device"
	case h == OpaqueFD && owner.driverUUID != peer.driverUUID:
		return "opaque_fd does not leave its driver"
	case h == DMABuf && (!owner.dmaBuf || !peer.dmaBuf):
		return "VK_EXT_external_memory_dma_buf is missing"
	case !owner.offers[h].exportable:
		return fmt.Sprintf("the owner's driver does not export storage buffers (%v)", h)
	case !peer.offers[h].importable:
		return fmt.Sprintf("the reader's driver does not import storage buffers (%v)", h)
	}
	return ""
}

// handleFor is how staging of owner can reach one peer; why is set where the
// answer is HostMemory.
func handleFor(owner, peer *sharer) (h Handle, why string) {
	if refuses(OpaqueFD, owner, peer) == "" {
		return OpaqueFD, ""
	}
	if why = refuses(DMABuf, owner, peer); why == "" {
		return DMABuf, ""
	}
	return HostMemory, why
}

// exportAs is the one handle type through which staging of owner can reach all
// its peers: the owner writes its operand once, to one place. HostMemory when
// there is none.
func exportAs(owner int, all []sharer) Handle {
	for _, h := range []Handle{OpaqueFD, DMABuf} {
		reaches := true
		for peer := range all {
			reaches = reaches && (peer == owner || refuses(h, &all[owner], &all[peer]) == "")
		}
		if reaches {
			return h
		}
	}
	return HostMemory
}

// importType chooses the memory type of an import: one that the buffer can have
// (need) and the driver accepts for the descriptor (fromFD, of
// vkGetMemoryFdPropertiesKHR).
func importType(need, fromFD uint32) (uint32, error) {
	switch common := need & fromFD; {
	case fromFD == 0:
		return 0, errors.New("the reader's driver has no memory type for it (memoryTypeBits 0)")
	case common == 0:
		return 0, fmt.Errorf("no memory type both for the buffer (%#x) and for the descriptor (%#x)", need, fromFD)
	default:
		return uint32(bits.TrailingZeros32(common)), nil
	}
}
