package plugin

import (
	"testing"

	"ggmlvkcomm/allreduce"
)

func TestSelection(t *testing.T) {
	for world := 2; world <= 16; world++ {
		s, forced := newSelection(&Config{Wire: allreduce.F16}, world)
		if forced || s.algorithm(4096) != allreduce.AlgorithmSingleShot || s.wireFor(4096) != allreduce.F32 {
			t.Errorf("n=%d: decode sizes: %v", world, s.String())
		}
		if s.algorithm(64<<20) == allreduce.AlgorithmSingleShot || s.wireFor(64<<20) != allreduce.F16 {
			t.Errorf("n=%d: large sizes: %v", world, s.String())
		}
		s, _ = newSelection(&Config{Wire: allreduce.F16, FP32: true, Ring: true}, world)
		if s.algorithm(64<<20) != allreduce.AlgorithmRing || s.wireFor(64<<20) != allreduce.F32 || s.algorithm(4096) != allreduce.AlgorithmSingleShot {
			t.Errorf("n=%d: FP32 and RING: %v", world, s.String())
		}
	}
}
