package allreduce

import "fmt"

// RelayElements is the most that one relayed reduction can sum: what a slot and
// an inbox hold (VKCOMM_RELAY_ELEMENTS in vkimpl/relay.h).
const RelayElements = 65536

// Relay builds the schedule of a reduction that runs as one kernel a rank, with
// the peers' operands brought to it by a host thread while it runs. To the
// checker it is a single round of SingleShot: a slot, read by the thread on
// behalf of every peer, is a half of the rank's staging, and an inbox word that
// carries the reduction's number is a wait for the peer's gather. It has halves
// of its own, which alternate from one relayed reduction to the next whatever
// other reductions run in between.
//
// It fails for more than RelayElements elements and for a 16-bit wire. HalfBytes
// and ChunkBytes of p are not used.
func Relay(p Params) (*Schedule, error) {
	if p.Elements > RelayElements || p.Wire != F32 {
		return nil, fmt.Errorf("allreduce: relay: %d elements of %s, can do %d of %s", p.Elements, p.Wire, RelayElements, F32)
	}
	p.HalfBytes, p.ChunkBytes = F32.Bytes(RelayElements), 0
	s, err := SingleShot(p)
	if err != nil {
		return nil, err
	}
	s.Algorithm = AlgorithmRelay
	return s, nil
}
