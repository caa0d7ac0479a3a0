package allreduce

import (
	"fmt"
	"testing"
)

// fullRounds is a context that reads and overwrites both whole halves of every
// rank's staging.
func fullRounds(t testing.TB, c *chain, world int, halfBytes int64) {
	c.add(t, AlgorithmSingleShot, Params{World: world, Elements: halfBytes / 2, HalfBytes: halfBytes})
}

// mutationCases lists reductions that together contain every kind of wait.
func mutationCases(algorithm string, world int, halfBytes int64) []Params {
	all := uint64(1)<<world - 1
	var cases []Params
	for _, wire := range []Wire{F32, F16} {
		for _, zero := range []uint64{0, 1, 2, all &^ 1, all &^ 2, all} {
			p := Params{World: world, Wire: wire, HalfBytes: halfBytes, ZeroRanks: zero}
			p.Elements = 100 // one chunk, one slice
			cases = append(cases, p)
			perRound := halfBytes / wire.stride(F16Block) * F16Block
			p.Elements = 2*perRound + 100 // two rounds and a little
			if algorithm != AlgorithmPipeline {
				cases = append(cases, p)
				p.Elements = perRound + 100
				cases = append(cases, p)
				continue
			}
			// Chunks of half a staging half and of a whole one; ranks with
			// and without a transfer queue.
			for _, p.TransferQueue = range []uint64{0, all, 1, all &^ 1} {
				for _, slots := range []int64{1, 2} {
					p.ChunkBytes = wire.Bytes(perRound / slots / F16Block * F16Block)
					cases = append(cases, p)
				}
				p.Elements = 3*perRound + 100
			}
		}
	}
	return cases
}

func TestEveryWaitIsNeeded(t *testing.T) {
	for world := 2; world <= 5; world++ {
		halfBytes := int64(world) * 1024
		for _, algorithm := range Algorithms() {
			cases := mutationCases(algorithm, world, halfBytes)
			if world == 5 && testing.Short() {
				cases = cases[:6]
			}
			for i, p := range cases {
				t.Run(fmt.Sprint(algorithm, world, i), func(t *testing.T) { dropEveryWait(t, algorithm, p) })
			}
		}
	}
}

// dropEveryWait asserts that the reduction is proven in its context, and not
// any more without any one of its waits.
func dropEveryWait(t *testing.T, algorithm string, p Params) {
	var c chain
	fullRounds(t, &c, p.World, p.HalfBytes)
	at := len(c.seq)
	s := c.add(t, algorithm, p)
	fullRounds(t, &c, p.World, p.HalfBytes)
	if err := Check(c.seq); err != nil {
		t.Fatalf("%+v: %v", p, err)
	}
	for i := range s.Batches {
		for w, wait := range s.Batches[i].Waits {
			mutated := clone(s)
			waits := mutated.Batches[i].Waits
			mutated.Batches[i].Waits = append(waits[:w:w], waits[w+1:]...)
			c.seq[at] = mutated
			if Check(c.seq) == nil {
				t.Errorf("%+v: batch %d of rank %d %v does not need its wait %+v",
					p, i, s.Batches[i].Rank, s.Batches[i].Queue, wait)
			}
		}
	}
}
