package plugin

import (
	"errors"
	"strings"
	"testing"

	"ggmlvkcomm/vkimpl"
)

func TestSlowestReaderDecides(t *testing.T) {
	for _, c := range []struct {
		name    string
		readers []readSpeed // of owner 0
		peer    int
		slow    bool
	}{
		{"faster", []readSpeed{{}, {25e9, 12e9}, {26e9, 12e9}}, 1, false},
		{"equal but for noise", []readSpeed{{}, {11.8e9, 12e9}, {26e9, 12e9}}, 1, false},
		{"one peer slower", []readSpeed{{}, {25e9, 12e9}, {3e9, 12e9}}, 2, true},
		{"uncached reads of VRAM", []readSpeed{{}, {0.1e9, 20e9}}, 1, true},
	} {
		if peer, slow := slowest(0, c.readers); peer != c.peer || slow != c.slow {
			t.Errorf("%s: rank %d, slow %v", c.name, peer, slow)
		}
	}
}

func TestP2PLines(t *testing.T) {
	possible := [][]vkimpl.Handle{{vkimpl.HostMemory, vkimpl.DMABuf, vkimpl.HostMemory}, {vkimpl.OpaqueFD, vkimpl.HostMemory, vkimpl.DMABuf}}
	want := "rank 0 to each [-, p2p dma_buf, host], rank 1 to each [p2p opaque_fd, -, p2p dma_buf]"
	if got := matrix(possible); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	failures := []*vkimpl.PairError{{Owner: 0, Peer: 1, Err: errors.New("memoryTypeBits 0")}, {Owner: 1, Peer: 0, Err: errors.New("x")}}
	if got := pairsText(failures); !strings.HasPrefix(got, "staging of rank 0 for rank 1: memoryTypeBits 0 (and 1 more pairs);") {
		t.Error(got)
	}
	speeds := [][]readSpeed{{{}, {25e9, 12e9}}, {{24.5e9, 13e9}, {}}}
	if got := speedText(speeds); got != "24.5 to 25.0 GB/s from VRAM, 12.0 to 13.0 GB/s from host memory" {
		t.Error(got)
	}
}
