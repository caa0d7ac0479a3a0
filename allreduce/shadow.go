package allreduce

import "slices"

// access says which step of which batch touched memory. The zero access stands
// for none.
type access struct {
	queue     int32 // see line
	seq       int32 // the batch's number on that queue over all reductions, from 1
	reduction int32
	batch     int32
	step      int32
}

// sameBatch reports whether a and b belong to one batch.
func (a access) sameBatch(b access) bool { return a.queue == b.queue && a.seq == b.seq }

// encoded describes one region as it was written to Staging or Scratch. Only
// the very region that was written can be read back: where its scales lie
// depends on its count.
type encoded struct {
	offset    int64 // bytes
	count     int64 // elements
	reduction int32
	values    []run // in elements of the tensor; values[0].lo is the first
}

// segment is a stretch of memory that was last written by one step.
type segment struct {
	lo, hi int64 // bytes, or elements of a Tensor
	writer access
	reads  []access // since then, the last one of each queue
	data   *encoded // Staging and Scratch
	value  expr     // Tensor
}

// shadow records who wrote and who read a memory, by intervals. Gaps between
// segments were never touched.
type shadow []segment

// find gives the index of the first segment that ends behind at.
func (m shadow) find(at int64) int {
	i, _ := slices.BinarySearchFunc(m, at, func(s segment, at int64) int {
		if s.hi <= at {
			return -1
		}
		return 1
	})
	return i
}

// cut makes at a boundary between segments.
func (m *shadow) cut(at int64) int {
	i := m.find(at)
	if i == len(*m) || (*m)[i].lo >= at {
		return i
	}
	left := (*m)[i]
	left.hi = at
	left.reads = slices.Clone(left.reads)
	(*m)[i].lo = at
	*m = slices.Insert(*m, i, left)
	return i + 1
}

// within gives the indices first..end-1 of the segments inside lo..hi, cut at
// both ends.
func (m *shadow) within(lo, hi int64) (first, end int) {
	first = m.cut(lo)
	return first, m.cut(hi)
}

// read notes a read of lo..hi and returns the segments that it sees. ok is
// false where part of the range was never written.
func (m *shadow) read(lo, hi int64, by access) (seen []segment, ok bool) {
	i, end := m.within(lo, hi)
	seen = (*m)[i:end]
	at := lo
	for k := range seen {
		ok = seen[k].lo == at
		if !ok {
			return seen, false
		}
		at = seen[k].hi
		seen[k].note(by)
	}
	return seen, at == hi
}

// note adds a read. An earlier read on the same queue is over before it.
func (s *segment) note(by access) {
	for i, r := range s.reads {
		if r.queue == by.queue && (r.seq < by.seq || r.step == by.step) {
			s.reads[i] = by
			return
		}
	}
	s.reads = append(s.reads, by)
}

// overlap lists the segments that touch lo..hi.
func (m shadow) overlap(lo, hi int64) []segment {
	first := m.find(lo)
	end := first
	for end < len(m) && m[end].lo < hi {
		end++
	}
	return m[first:end]
}

// write replaces all segments in s.lo..s.hi by s.
func (m *shadow) write(s segment) {
	i, end := m.within(s.lo, s.hi)
	*m = slices.Replace(*m, i, end, s)
}
