package vkimpl

import (
	"fmt"
	"slices"
	"time"

	"ggmlvkcomm/allreduce"
)

// costModel is what the cost model is given: a link a rank, fitted to two sizes
// each, and for one ordering how long a signal takes to get to a peer.
type costModel struct {
	order string
	links []allreduce.Link
	hop   float64 // seconds from one rank's kernel to the next one's
}

// fit measures a model for the ordering in use; nil where no link fits.
func (g *benchRig) fit() *costModel {
	m := &costModel{order: string(g.ranks.Kind()), hop: g.hop()}
	large := min(g.ranks.HalfBytes(), g.ranks.ChunkBytes(), g.settings.largest(), 8<<20) / allreduce.OffsetAlign * allreduce.OffsetAlign
	for rank := range g.world {
		small, big := g.sample(rank, large/16/allreduce.OffsetAlign*allreduce.OffsetAlign), g.sample(rank, large)
		link, err := allreduce.FitLink(small, big, g.deviceRate(rank, large))
		if err != nil {
			fmt.Printf("# no prediction for %s ordering: rank %d: %v\n", m.order, rank, err)
			return nil
		}
		m.links = append(m.links, link)
	}
	g.models = append(g.models, m)
	return m
}

// sample times one transfer of so many bytes in each direction, as FitLink
// wants it: from the submission to the signal, which includes the host's wait.
func (g *benchRig) sample(rank int, bytes int64) allreduce.Sample {
	pack := allreduce.Step{Op: allreduce.Pack, Count: bytes / 4, Dst: allreduce.StagingAt(rank, 0), Srcs: []allreduce.Region{allreduce.TensorAt(rank, 0)}}
	unpack := allreduce.Step{Op: allreduce.Unpack, Count: bytes / 4, Dst: allreduce.TensorAt(rank, 0), Srcs: []allreduce.Region{allreduce.StagingAt(rank, 0)}}
	return allreduce.Sample{Bytes: bytes, Write: g.seconds(g.alone(rank, pack)), Read: g.seconds(g.alone(rank, unpack))}
}

// deviceRate is the bandwidth of kernels in a rank's own memory, in bytes read
// and written a second.
func (g *benchRig) deviceRate(rank int, bytes int64) float64 {
	// Many steps: one of a few MB takes a GPU no longer than the host's wait.
	const few, many = 4, 64
	pack := allreduce.Step{Op: allreduce.Pack, Count: bytes / 4, Srcs: []allreduce.Region{allreduce.TensorAt(rank, 0)},
		Dst: allreduce.Region{Space: allreduce.Scratch, Rank: rank}}
	short := g.seconds(g.alone(rank, slices.Repeat([]allreduce.Step{pack}, few)...))
	long := g.seconds(g.alone(rank, slices.Repeat([]allreduce.Step{pack}, many)...))
	return float64(2*bytes*(many-few)) / (long - short)
}

// alone is a schedule in which one rank does steps and no other does anything.
func (g *benchRig) alone(rank int, steps ...allreduce.Step) *allreduce.Schedule {
	return allreduce.ByHand(g.world, allreduce.F32, g.ranks.HalfBytes(), allreduce.Only(rank, steps...))
}

// hop is how long a rank's kernel runs after the signal of its left neighbour
// that it waits for, that kernel included, which does next to nothing.
func (g *benchRig) hop() float64 {
	const few, many = 8, 72
	return (g.seconds(g.chain(many)) - g.seconds(g.chain(few))) / (many - few)
}

func (g *benchRig) chain(batches int) *allreduce.Schedule {
	return allreduce.Chain(g.world, batches, g.ranks.HalfBytes())
}

// seconds is how long a schedule takes, the median of a few runs after one that
// does not count.
func (g *benchRig) seconds(s *allreduce.Schedule) float64 {
	g.b.Helper()
	p, err := g.ranks.Program(s, g.bindings)
	must(g.b, err)
	defer p.Close()
	var times []float64
	for range 10 {
		start := time.Now()
		must(g.b, g.ranks.Submit(p))
		must(g.b, g.drainOf(s))
		times = append(times, time.Since(start).Seconds())
	}
	return median(times[1:])
}

// drainOf waits for the ranks that take part in a schedule, the last one to
// submit first.
func (g *benchRig) drainOf(s *allreduce.Schedule) error {
	var seen uint64
	for i := len(s.Batches) - 1; i >= 0; i-- {
		if rank := s.Batches[i].Rank; seen>>rank&1 == 0 {
			seen |= 1 << rank
			if err := g.drainRank(rank); err != nil {
				return err
			}
		}
	}
	return nil
}

// predict is how long the model says that a schedule takes: with the latency
// that was fitted, and with that of a hop in its place. 0: unknown.
func (m *costModel) predict(s *allreduce.Schedule) (fitted, hop float64) {
	if m == nil {
		return 0, 0
	}
	fitted, _ = s.Predict(m.links)
	links := slices.Clone(m.links)
	for i := range links {
		links[i].Latency = m.hop
	}
	hop, _ = s.Predict(links)
	return fitted, hop
}
