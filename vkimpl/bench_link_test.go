package vkimpl

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"ggmlvkcomm/allreduce"
)

// linkRig moves bytes between the ranks' tensors and their own staging, without
// any wait between ranks. Tensors and staging are two parts of so many bytes,
// so that both directions at once touch different memory.
type linkRig struct {
	*benchRig
	bytes int64
	moved []*mover
}

// mover is one way of moving them.
type mover struct {
	rank int // -1: all at once
	by   string
	dir  string
	time timing
}

const (
	byKernel   = "kernel"
	byTransfer = "transfer"        // the copy queue
	byTwo      = "transfer+kernel" // as Pipeline: the copy queue writes, a kernel reads

	dirWrite = "write"
	dirRead  = "read"
	dirBoth  = "both"
)

func (m *mover) String() string {
	rank := "all"
	if m.rank >= 0 {
		rank = fmt.Sprint(m.rank)
	}
	return fmt.Sprintf("rank=%s/by=%s/dir=%s", rank, m.by, m.dir)
}

func (g *benchRig) openLink() *linkRig {
	l := &linkRig{benchRig: g, bytes: g.settings.link}
	g.openRanks(2*l.bytes, 2*l.bytes)
	return l
}

func (l *linkRig) close() { l.closeRanks() }

// movers lists every way, each rank by itself first.
func (l *linkRig) movers() []*mover {
	if l.moved != nil {
		return l.moved
	}
	for rank := range l.world + 1 {
		if rank == l.world {
			rank = -1
		}
		for _, dir := range []string{dirWrite, dirRead, dirBoth} {
			l.moved = append(l.moved, &mover{rank: rank, by: byKernel, dir: dir})
		}
		if mask := l.ranks.TransferQueues(); mask == 0 || rank >= 0 && mask>>rank&1 == 0 {
			continue
		}
		for _, dir := range []string{dirWrite, dirRead} {
			l.moved = append(l.moved, &mover{rank: rank, by: byTransfer, dir: dir})
		}
		l.moved = append(l.moved, &mover{rank: rank, by: byTwo, dir: dirBoth})
	}
	return l.moved
}

// piece bounds one step; several steps make up the bytes.
const linkPiece = 8 << 20

// schedule is what one iteration submits. A rank without a transfer queue takes
// no part in what needs one.
func (l *linkRig) schedule(m *mover) *allreduce.Schedule {
	s := allreduce.ByHand(l.world, allreduce.F32, l.ranks.HalfBytes(), allreduce.Only(0))
	for rank := range l.world {
		if m.rank >= 0 && m.rank != rank || m.by != byKernel && l.ranks.TransferQueues()>>rank&1 == 0 {
			continue
		}
		compute := allreduce.Batch{Rank: rank, Queue: allreduce.Compute}
		switch {
		case m.by == byKernel && m.dir == dirBoth:
			s.Batches = append(s.Batches, l.turns(rank)...)
		case m.by == byKernel:
			compute.Steps = l.steps(rank, m.dir)
		case m.by == byTwo:
			compute.Steps = l.steps(rank, dirRead)
		}
		if m.by != byKernel {
			dir := m.dir
			if m.by == byTwo {
				dir = dirWrite
			}
			s.Batches = append(s.Batches, allreduce.Batch{Rank: rank, Queue: allreduce.Transfer, Steps: l.steps(rank, dir), Signal: 1})
			s.Signals[rank][allreduce.Transfer] = 1
		}
		if len(compute.Steps) > 0 {
			s.Batches = append(s.Batches, compute)
		}
		if m.by != byKernel {
			// What is waited for at the end is the compute queue.
			s.Batches = append(s.Batches, allreduce.Batch{Rank: rank, Waits: []allreduce.Wait{
				{Point: allreduce.Point{Rank: rank, Queue: allreduce.Transfer, Value: 1}, Hazard: allreduce.RAW}}})
		}
	}
	return s
}

// steps of one queue of a rank: written is the lower part of staging, read the
// upper one.
func (l *linkRig) steps(rank int, dir string) (steps []allreduce.Step) {
	piece := min(linkPiece, l.ranks.ChunkBytes())
	for at := int64(0); at < l.bytes; at += piece {
		count := min(piece, l.bytes-at) / 4
		written, read := allreduce.StagingAt(rank, at), allreduce.StagingAt(rank, l.bytes+at)
		if dir == dirWrite {
			steps = append(steps, allreduce.Step{Op: allreduce.Pack, Count: count, Dst: written,
				Srcs: []allreduce.Region{allreduce.TensorAt(rank, at/4)}})
		} else {
			steps = append(steps, allreduce.Step{Op: allreduce.Reduce, Count: count, Dst: allreduce.TensorAt(rank, (l.bytes+at)/4),
				Srcs: []allreduce.Region{read}})
		}
	}
	return steps
}

// turns of a pipeline, without its waits: each writes a piece and reads another.
func (l *linkRig) turns(rank int) (batches []allreduce.Batch) {
	reads := l.steps(rank, dirRead)
	for i, write := range l.steps(rank, dirWrite) {
		batches = append(batches, allreduce.Batch{Rank: rank, Steps: []allreduce.Step{write, reads[i]}})
	}
	return batches
}

func (l *linkRig) bench(b *testing.B, m *mover) *timing {
	b.Helper()
	p, err := l.ranks.Program(l.schedule(m), l.bindings)
	must(b, err)
	defer p.Close()
	if b.N == 1 { // a kernel's first run may compile it
		must(b, l.ranks.Submit(p))
		must(b, l.drain())
	}
	m.time.run(b, func() error { return l.ranks.Submit(p) }, l.drain)
	return &m.time
}

// measure fills in the timings without the framework: enough for a rate.
func (l *linkRig) measure() {
	least := 20 * time.Millisecond
	if testing.Short() {
		least = 0
	}
	for _, m := range l.movers() {
		if m.rank < 0 || m.dir == dirBoth {
			continue // not in rate
		}
		p, err := l.ranks.Program(l.schedule(m), l.bindings)
		must(l.b, err)
		for n := 1; ; n *= 2 {
			start := time.Now()
			for range n {
				must(l.b, l.ranks.Submit(p))
			}
			must(l.b, l.drain())
			if took := time.Since(start); n > 1 && took >= least { // the first one warms up
				m.time.seconds = []float64{took.Seconds() / float64(n)}
				break
			}
		}
		p.Close()
	}
}

// rate is the link rate that AllReduce is compared with, in GB/s: of each rank
// the slower direction, by whatever moves it faster, and of these the least. 0
// unless all of it was measured.
func (l *linkRig) rate() float64 {
	var ranks []float64
	for rank := range l.world {
		ranks = append(ranks, min(l.best(rank, dirWrite), l.best(rank, dirRead)))
	}
	return slices.Min(ranks)
}

func (l *linkRig) best(rank int, dir string) (rate float64) {
	for _, m := range l.moved {
		if m.rank == rank && m.dir == dir {
			rate = max(rate, gigabytes(l.bytes, m.time.median()))
		}
	}
	return rate
}
