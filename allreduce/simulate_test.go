package allreduce

import "testing"

// wrongOrders runs seq in many orders and returns how many gave a wrong sum or
// none at all.
func wrongOrders(seq []*Schedule, orders uint64) int {
	wrong := 0
	for seed := range orders {
		if simulate(seq, seeded(1), seeded(seed)) != nil {
			wrong++
		}
	}
	return wrong
}

func TestAMissingWaitShowsInSomeOrder(t *testing.T) {
	p := Params{World: 3, Elements: 1400, HalfBytes: 4096, ChunkBytes: 1024, TransferQueue: 1}
	for _, hazard := range []Hazard{RAW, WAR} {
		for _, algorithm := range Algorithms() {
			if hazard == WAR && (algorithm == AlgorithmTwoShot || algorithm == AlgorithmRing) {
				continue // have none here
			}
			p.ZeroRanks = uint64(hazard) << 2 // single-shot's WAR waits are for a zero rank
			var c chain
			fullRounds(t, &c, p.World, p.HalfBytes)
			s := clone(c.add(t, algorithm, p))
			fullRounds(t, &c, p.World, p.HalfBytes)
			if n := wrongOrders(c.seq, 25); n > 0 {
				t.Fatalf("%s: %d wrong sums with all waits", algorithm, n)
			}
			for i := range s.Batches {
				b := &s.Batches[i]
				var kept []Wait
				for _, w := range b.Waits {
					if w.Hazard != hazard {
						kept = append(kept, w)
					}
				}
				b.Waits = kept
			}
			c.seq[1] = s
			if wrongOrders(c.seq, 25) == 0 {
				t.Errorf("%s: no order of 25 misses the waits for hazard %d", algorithm, hazard)
			}
		}
	}
}

func TestADeadLockIsReported(t *testing.T) {
	s := mustBuild(t, AlgorithmSingleShot, Params{World: 2, Elements: 10, HalfBytes: 4096})
	s.Batches[0].Signal = 0
	if simulate([]*Schedule{s}, seeded(1), nil) == nil {
		t.Error("ran in submission order")
	}
	if simulate([]*Schedule{s}, seeded(1), seeded(2)) == nil {
		t.Error("ran in another order")
	}
}
