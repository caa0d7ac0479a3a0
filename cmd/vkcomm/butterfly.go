package main

import (
	"math/bits"

	"ggmlvkcomm/allreduce"
)

// butterfly is what llama.cpp does without the plugin, emulated: the additions
// of its meta backend (allreduce_fallback), each preceded by a copy between
// devices for which the host waits twice, once for the source's half and once
// for the destination's. It is kinder than llama.cpp: commands are recorded once
// and both devices see the same host memory, so that the host copies nothing.
type butterfly struct{ phases []phase }

// phase: the copies, one after the other, then the sums, which are not waited
// for.
type phase struct {
	copies []copying
	adds   *transfer // nil after the last exchange
}

type copying struct {
	from, to int
	out, in  *transfer
}

type pair struct{ from, to int }

// butterflyPairs lists the copies of each phase. In the first the surplus ranks
// are added in, in the last they get the sum (add is false there).
func butterflyPairs(world int) (phases [][]pair, surplus bool) {
	p := 1 << (bits.Len(uint(world)) - 1)
	var first, last []pair
	for j := p; j < world; j++ {
		first, last = append(first, pair{j, j - p}), append(last, pair{j - p, j})
	}
	if first != nil {
		phases = append(phases, first)
	}
	for d := p / 2; d >= 1; d /= 2 {
		var list []pair
		for j := range p {
			list = append(list, pair{j ^ d, j})
		}
		phases = append(phases, list)
	}
	if last != nil {
		phases = append(phases, last)
	}
	return phases, last != nil
}

func (g *rig) butterfly(bytes int64) (*butterfly, error) {
	b := &butterfly{}
	lists, surplus := butterflyPairs(g.world)
	for i, list := range lists {
		ph, err := g.butterflyPhase(list, bytes, !surplus || i < len(lists)-1)
		b.phases = append(b.phases, ph)
		if err != nil {
			b.close()
			return nil, err
		}
	}
	return b, nil
}

func (g *rig) butterflyPhase(list []pair, bytes int64, add bool) (ph phase, err error) {
	for _, p := range list {
		c := copying{from: p.from, to: p.to}
		c.out, err = g.record(only(p.from, g.linkSteps(p.from, p.from, bytes, true)))
		if err != nil {
			return ph, err
		}
		ph.copies = append(ph.copies, c)
		var in []allreduce.Step
		g.pieces(bytes, func(at, count int64) {
			in = append(in, allreduce.Step{Op: allreduce.Copy, Count: count, Dst: allreduce.ScratchAt(p.to, at), Srcs: []allreduce.Region{allreduce.StagingAt(p.from, at)}})
		})
		if !add {
			in = g.linkSteps(p.to, p.from, bytes, false)
		}
		if ph.copies[len(ph.copies)-1].in, err = g.record(only(p.to, in)); err != nil {
			return ph, err
		}
	}
	if add {
		ph.adds, err = g.record(func(rank int) (steps []allreduce.Step) {
			for _, p := range list {
				if p.to == rank {
					g.pieces(bytes, func(at, count int64) {
						steps = append(steps, allreduce.Step{Op: allreduce.Reduce, Count: count, Dst: allreduce.TensorAt(rank, at/4),
							Srcs: []allreduce.Region{allreduce.TensorAt(rank, at/4), allreduce.ScratchAt(rank, at)}})
					})
				}
			}
			return steps
		})
	}
	return ph, err
}

func only(rank int, steps []allreduce.Step) func(int) []allreduce.Step {
	return func(r int) []allreduce.Step {
		if r != rank {
			return nil
		}
		return steps
	}
}

func (b *butterfly) submit(g *rig) error {
	for _, ph := range b.phases {
		for _, c := range ph.copies {
			if err := c.out.submit(g); err != nil {
				return err
			}
			if err := g.drainRank(c.from); err != nil {
				return err
			}
			if err := c.in.submit(g); err != nil {
				return err
			}
			if err := g.drainRank(c.to); err != nil {
				return err
			}
		}
		if ph.adds != nil {
			if err := ph.adds.submit(g); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *butterfly) close() {
	for _, ph := range b.phases {
		for _, c := range ph.copies {
			for _, t := range []*transfer{c.out, c.in} {
				if t != nil {
					t.close()
				}
			}
		}
		if ph.adds != nil {
			ph.adds.close()
		}
	}
}
