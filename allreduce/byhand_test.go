package allreduce

import "testing"

// Every batch but the first waits for the one before it, whose value is signalled
// by then.
func TestChain(t *testing.T) {
	for world := 2; world <= 5; world++ {
		s := Chain(world, 3*world+1, 1<<20)
		signals := make([]int64, world)
		for i, b := range s.Batches {
			if i > 0 && (len(b.Waits) != 1 || b.Waits[0].Rank != (i-1)%world || b.Waits[0].Value != signals[(i-1)%world]) {
				t.Errorf("n=%d: batch %d waits for %v", world, i, b.Waits)
			}
			signals[b.Rank]++
			if b.Rank != i%world || b.Signal != signals[b.Rank] {
				t.Errorf("n=%d: batch %d is rank %d's and signals %d", world, i, b.Rank, b.Signal)
			}
		}
		for r, n := range signals {
			if s.Signals[r][Compute] != n {
				t.Errorf("n=%d: rank %d signals %d times, the schedule says %d", world, r, n, s.Signals[r][Compute])
			}
		}
	}
}
