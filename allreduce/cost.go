package allreduce

import (
	"errors"
	"fmt"
	"slices"
)

// Link describes how a rank reaches staging memory and its own.
type Link struct {
	// Latency in seconds: from a submission, or from the signal that it
	// waits for, to the start of a batch.
	Latency float64
	// Write and Read are the bandwidths to and from staging, in bytes a
	// second. The two directions do not disturb each other.
	Write, Read float64
	// Device is the bandwidth of the kernels in the rank's own memory, in
	// bytes read and written a second.
	Device float64
}

// Sample is a measurement on one device: how long it took, in seconds from the
// submission to the signal, to pack bytes into staging and to unpack them.
type Sample struct {
	Bytes       int64
	Write, Read float64
}

// FitLink derives a Link from two samples of different size: bandwidths from
// the slopes, the latency from the mean of the two intercepts. device is
// Link.Device. It fails where the larger transfer took no longer than the
// smaller one.
func FitLink(a, b Sample, device float64) (Link, error) {
	if a.Bytes > b.Bytes {
		a, b = b, a
	}
	bytes, write, read := float64(b.Bytes-a.Bytes), b.Write-a.Write, b.Read-a.Read
	if !(bytes > 0 && write > 0 && read > 0 && device > 0) {
		return Link{}, errors.New("allreduce: no link fits these samples: " +
			"the larger one has to take longer in both directions")
	}
	l := Link{Write: bytes / write, Read: bytes / read, Device: device}
	n := float64(a.Bytes)
	l.Latency = max(0, (a.Write-n/l.Write+a.Read-n/l.Read)/2)
	return l, nil
}

// Predict is the time in seconds that a checked schedule takes when all ranks
// begin at once; links has one Link a rank.
//
// The model: a queue starts a batch when the one before it is complete and
// every signal that it waits for is Latency old. A batch writes, reads and
// works in device memory at the same time and lasts as long as the slowest of
// the three. Each direction of a rank's link serves one batch after the other,
// in the order in which they start, so that two queues of a rank share it.
func (s *Schedule) Predict(links []Link) (float64, error) {
	if len(links) != s.World {
		return 0, fmt.Errorf("allreduce: %d links for world size %d", len(links), s.World)
	}
	p := newPrediction(s, links)
	for range s.Batches {
		if !p.advance() {
			return 0, errors.New("allreduce: schedule is dead-locked")
		}
	}
	return slices.Max(p.free), nil
}

// prediction is the state of an event simulation. Queues and their timelines
// share an index.
type prediction struct {
	s     *Schedule
	links []Link
	heads [][]*Batch
	free  []float64           // when the queue's last batch is complete
	ready []float64           // when the head may start; below 0: not known yet
	when  []map[int64]float64 // when a timeline reached a value
	write []float64           // when a rank's link is free again
	read  []float64
}

func newPrediction(s *Schedule, links []Link) *prediction {
	p := &prediction{
		s: s, links: links,
		heads: make([][]*Batch, 2*s.World),
		free:  make([]float64, 2*s.World),
		ready: make([]float64, 2*s.World),
		when:  make([]map[int64]float64, 2*s.World),
		write: make([]float64, s.World),
		read:  make([]float64, s.World),
	}
	for i := range s.Batches {
		b := &s.Batches[i]
		q := line(b.Rank, b.Queue)
		p.heads[q] = append(p.heads[q], b)
	}
	for q := range p.when {
		p.when[q] = map[int64]float64{}
		p.free[q] = links[q/2].Latency
		p.ready[q] = -1
	}
	return p
}

// start is when the head of a queue may start, or below 0 if something that it
// waits for has no time yet.
func (p *prediction) start(q int) float64 {
	at := p.free[q]
	for _, w := range p.heads[q][0].Waits {
		if w.Value <= 0 {
			continue
		}
		signalled, ok := p.when[line(w.Rank, w.Queue)][w.Value]
		if !ok {
			return -1
		}
		at = max(at, signalled+p.links[q/2].Latency)
	}
	return at
}

// advance runs the batch that starts first. Nothing that it signals can start
// another one earlier, so that links are served in order of time.
func (p *prediction) advance() bool {
	first := -1
	for q := range p.heads {
		if len(p.heads[q]) == 0 {
			continue
		}
		if p.ready[q] < 0 {
			p.ready[q] = p.start(q)
		}
		if p.ready[q] >= 0 && (first < 0 || p.ready[q] < p.ready[first]) {
			first = q
		}
	}
	if first < 0 {
		return false
	}
	b, at := p.heads[first][0], p.ready[first]
	p.heads[first] = p.heads[first][1:]
	p.ready[first] = -1
	p.free[first] = p.transfer(b, at)
	if b.Signal > 0 {
		p.when[first][b.Signal] = p.free[first]
	}
	return true
}

// transfer is when a batch that starts at a time is complete.
func (p *prediction) transfer(b *Batch, at float64) float64 {
	t, link := p.s.traffic(b), p.links[b.Rank]
	end := at + float64(t.device)/link.Device
	serve := func(free *float64, bytes int64, bandwidth float64) {
		if bytes > 0 {
			*free = max(*free, at) + float64(bytes)/bandwidth
			end = max(end, *free)
		}
	}
	serve(&p.write[b.Rank], t.written, link.Write)
	serve(&p.read[b.Rank], t.read, link.Read)
	return end
}

// Crossover says which algorithm is predicted to be the fastest from a number
// of elements on.
type Crossover struct {
	World     int
	Elements  int64
	Algorithm string
	Seconds   float64 // at Elements
}

// Crossovers predicts every algorithm for each world size, on ranks that are
// alike, and for each number of elements, in ascending order; it lists the
// points at which another one becomes the fastest. base gives everything else;
// its TransferQueue counts as all or none of the ranks. Algorithms that cannot
// be built there are left out.
func Crossovers(link Link, base Params, worlds []int, elements []int64) []Crossover {
	var out []Crossover
	for _, n := range worlds {
		links := slices.Repeat([]Link{link}, n)
		p := base
		p.World = n
		if p.TransferQueue != 0 {
			p.TransferQueue = ^uint64(0) >> (maskBits - n)
		}
		last := ""
		for _, p.Elements = range elements {
			best := fastest(links, p)
			if best.Algorithm != last && best.Algorithm != "" {
				out = append(out, best)
				last = best.Algorithm
			}
		}
	}
	return out
}

// fastest is the algorithm with the shortest predicted time, the simplest of
// equals.
func fastest(links []Link, p Params) Crossover {
	best := Crossover{World: p.World, Elements: p.Elements}
	for _, algorithm := range Algorithms() {
		s, err := Build(algorithm, p)
		if err != nil {
			continue
		}
		t, err := s.Predict(links)
		if err == nil && (best.Algorithm == "" || t < best.Seconds) {
			best.Algorithm, best.Seconds = algorithm, t
		}
	}
	return best
}
