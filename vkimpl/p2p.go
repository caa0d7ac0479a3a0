package vkimpl

// #include "record.h"
import "C"

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"ggmlvkcomm/allreduce"
)

// p2p is staging that has left host memory: each owner's lies in memory of its
// own device, which its peers have imported. An owner with a single peer that
// cannot import it stays where all can read, since it writes its operand once.
type p2p struct {
	handles []Handle    // by owner
	host    [][]*Buffer // [reader][owner]: the staging that P2P took the place of
}

// PairError is why a peer cannot read an owner's staging in device memory.
type PairError struct {
	Owner, Peer int // alike where the owner cannot even export it
	Err         error
}

func (e *PairError) Error() string {
	return fmt.Sprintf("staging of rank %d for rank %d: %v", e.Owner, e.Peer, e.Err)
}

func (e *PairError) Unwrap() error { return e.Err }

// OpenP2P moves the staging of every owner whose peers all can import it into
// device memory. possible[owner][peer] is how each pair could do it by itself,
// HostMemory where it cannot; failures say why. Programs that were recorded
// before go on with host memory. No queue may be using the staging.
func (r *Ranks) OpenP2P() (possible [][]Handle, failures []*PairError) {
	sharers := make([]sharer, len(r.Devices))
	for i, d := range r.Devices {
		sharers[i] = d.sharer()
	}
	r.p2p.handles = make([]Handle, len(r.Devices))
	r.p2p.host = make([][]*Buffer, len(r.Devices))
	for i := range r.p2p.host {
		r.p2p.host[i] = make([]*Buffer, len(r.Devices))
	}
	for owner := range r.Devices {
		row, failed := pairs(owner, sharers)
		if len(failed) == 0 {
			h := exportAs(owner, sharers)
			failed = r.shareStaging(owner, h, sharers)
			for peer := range row {
				if row[peer] = h; peer == owner {
					row[peer] = HostMemory
				}
			}
			for _, f := range failed {
				row[f.Peer] = HostMemory
				if f.Peer == owner { // nothing leaves it
					clear(row)
				}
			}
		}
		possible, failures = append(possible, row), append(failures, failed...)
	}
	return possible, failures
}

// pairs is what the devices' answers allow the owner, peer by peer.
func pairs(owner int, all []sharer) (row []Handle, failures []*PairError) {
	row = make([]Handle, len(all))
	for peer := range all {
		if peer == owner {
			continue
		}
		h, why := handleFor(&all[owner], &all[peer])
		if row[peer] = h; h == HostMemory {
			failures = append(failures, &PairError{owner, peer, errors.New(why)})
		}
	}
	if len(failures) == 0 && exportAs(owner, all) == HostMemory {
		failures = append(failures, &PairError{owner, owner, errors.New("no handle type serves all its peers")})
	}
	return row, failures
}

// shareStaging exports memory of owner's device and lets every peer import it,
// or leaves all as it was and says which peers could not.
func (r *Ranks) shareStaging(owner int, h Handle, sharers []sharer) (failures []*PairError) {
	size := r.staging[owner][owner].size
	own, err := r.Devices[owner].exportable(size, h, sharers[owner].offers[h].dedicatedOnly)
	if err != nil {
		return []*PairError{{owner, owner, err}}
	}
	seen := make([]*Buffer, len(r.Devices))
	seen[owner] = own.Buffer
	for peer, d := range r.Devices {
		if peer == owner {
			continue
		}
		if seen[peer], err = d.importFrom(own, sharers[peer].offers[h].dedicatedOnly); err != nil {
			failures = append(failures, &PairError{owner, peer, err})
		}
	}
	if len(failures) > 0 {
		for _, b := range seen {
			b.Close()
		}
		return failures
	}
	for reader := range r.Devices {
		r.p2p.host[reader][owner], r.staging[reader][owner] = r.staging[reader][owner], seen[reader]
	}
	r.p2p.handles[owner] = h
	return nil
}

// LeaveP2P puts an owner's staging back into host memory. No queue may be using
// it, and SettleP2P must not have been called.
func (r *Ranks) LeaveP2P(owner int) {
	if r.StagingHandle(owner) == HostMemory {
		return
	}
	for reader := range r.Devices {
		r.staging[reader][owner].Close()
		r.staging[reader][owner], r.p2p.host[reader][owner] = r.p2p.host[reader][owner], nil
	}
	r.p2p.handles[owner] = HostMemory
}

// SettleP2P frees the host memory of which P2P took the place: a driver walks
// the pages of every import at every submission.
func (r *Ranks) SettleP2P() {
	r.closeP2P()
	for owner, mapping := range r.pages {
		if r.StagingHandle(owner) != HostMemory && mapping != nil {
			_ = unix.Munmap(mapping) // of our own mmap: cannot fail
			r.pages[owner] = nil
		}
	}
}

// closeP2P frees the buffers that are out of use because P2P is in use.
func (r *Ranks) closeP2P() {
	for _, row := range r.p2p.host {
		for owner, b := range row {
			b.Close()
			row[owner] = nil
		}
	}
}

// StagingHandle is where the staging of owner lies.
func (r *Ranks) StagingHandle(owner int) Handle {
	if r.p2p.handles == nil {
		return HostMemory
	}
	return r.p2p.handles[owner]
}

// StagingBytes is the size of a rank's staging.
func (r *Ranks) StagingBytes() int64 { return r.staging[0][0].size }

// ReadSpeed is how fast reader copies from the staging of owner into sink, a
// buffer of its own, in bytes/s: from host memory if host is set, which needs P2P
// in use, else from wherever that staging lies now.
func (r *Ranks) ReadSpeed(reader, owner int, host bool, sink *Buffer, timeout time.Duration) (float64, error) {
	from := r.staging[reader][owner]
	if host {
		from = r.p2p.host[reader][owner]
	}
	bytes := min(from.size, sink.size)
	steps := []C.struct_vkcomm_step{copyOf(Binding{Buffer: raw(from.handle)}, sink, bytes)}
	var took time.Duration
	for range 2 { // the first run maps pages and wakes the link, and does not count
		start := time.Now()
		if err := r.copyNow(reader, steps, timeout); err != nil {
			return 0, err
		}
		took = time.Since(start)
	}
	return float64(bytes) / took.Seconds(), nil
}

// shared lists what a batch reads and writes in memory that several devices see.
func (r *Ranks) shared(b *allreduce.Batch, wire allreduce.Wire) (all []C.struct_vkcomm_shared) {
	if r.p2p.handles == nil {
		return nil
	}
	add := func(region *allreduce.Region, count int64, written bool) {
		if region.Space != allreduce.Staging {
			return
		}
		if outside, known := r.outside(b.Rank, region.Rank); known {
			all = append(all, C.struct_vkcomm_shared{buffer: as[C.VkBuffer](raw(r.staging[b.Rank][region.Rank].handle)),
				offset: C.VkDeviceSize(region.Offset), bytes: C.VkDeviceSize(wire.Bytes(count)),
				outside: outside, written: C.bool(written)})
		}
	}
	for i := range b.Steps {
		s := &b.Steps[i]
		for k := range s.Srcs {
			add(&s.Srcs[k], s.Count, false)
		}
		add(&s.Dst, s.Count, true)
		if s.Publish != nil {
			add(s.Publish, s.Count, true)
		}
	}
	return all
}

// outside is the queue family that stands for the other devices that see the
// staging of owner. The specification has EXTERNAL for the same device and
// driver; for others it has FOREIGN, of an extension without which there is
// nothing to name and barriers have to do.
func (r *Ranks) outside(rank, owner int) (family C.uint32_t, known bool) {
	switch r.StagingHandle(owner) {
	case OpaqueFD:
		return C.VK_QUEUE_FAMILY_EXTERNAL, true
	case DMABuf:
		return C.VK_QUEUE_FAMILY_FOREIGN_EXT, r.Devices[rank].adopted.QueueFamilyForeign
	}
	return 0, false
}
