package allreduce

// traffic is what a batch or a schedule moves, in bytes.
type traffic struct {
	written int64 // to Staging, across the rank's link
	read    int64 // from Staging, across the rank's link
	device  int64 // to and from Tensor and Scratch, in device memory
}

// HostBytes is what the schedule lets a rank write to and read from staging
// memory, which is across the rank's link when staging lies in host memory.
// Scratch and Tensor are the device's own. A rank outside the world moves
// nothing.
func (s *Schedule) HostBytes(rank int) (written, read int64) {
	for i := range s.Batches {
		if s.Batches[i].Rank == rank {
			t := s.traffic(&s.Batches[i])
			written += t.written
			read += t.read
		}
	}
	return written, read
}

// traffic adds up the steps of a batch.
func (s *Schedule) traffic(b *Batch) traffic {
	var t traffic
	for i := range b.Steps {
		st := &b.Steps[i]
		wire := s.Wire.Bytes(st.Count)
		// move counts a region's bytes; over is where those of staging go.
		move := func(r Region, over *int64) {
			switch r.Space {
			case Staging:
				*over += wire
			case Scratch:
				t.device += wire
			case Tensor:
				t.device += 4 * st.Count
			}
		}
		move(st.Dst, &t.written)
		if st.Publish != nil {
			move(*st.Publish, &t.written)
		}
		if st.Op == Pack && s.Wire != F32 {
			move(st.Srcs[0], &t.written) // rounded in place
		}
		for _, src := range st.Srcs {
			move(src, &t.read)
		}
	}
	return t
}
