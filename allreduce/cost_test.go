package allreduce

import (
	"math"
	"slices"
	"testing"
)

// pcie is a device behind a PCIe 4.0 x16 link.
var pcie = Link{Latency: 20e-6, Write: 24e9, Read: 24e9, Device: 600e9}

func TestFitLinkRecoversALink(t *testing.T) {
	sample := func(bytes int64) Sample {
		return Sample{bytes, pcie.Latency + float64(bytes)/pcie.Write, pcie.Latency + float64(bytes)/pcie.Read}
	}
	for _, order := range [][2]int64{{1 << 16, 1 << 24}, {1 << 24, 1 << 16}} {
		got, err := FitLink(sample(order[0]), sample(order[1]), pcie.Device)
		if err != nil {
			t.Fatal(err)
		}
		for i, pair := range [][2]float64{{got.Latency, pcie.Latency}, {got.Write, pcie.Write},
			{got.Read, pcie.Read}, {got.Device, pcie.Device}} {
			if math.Abs(pair[0]/pair[1]-1) > 1e-6 {
				t.Errorf("field %d: %g, want %g", i, pair[0], pair[1])
			}
		}
	}
	for _, bad := range [][2]Sample{
		{sample(100), sample(100)},
		{{100, 1, 1}, {200, 1, 2}},
		{{100, 1, 2}, {200, 2, 2}},
		{{100, 1, 1}, {200, math.NaN(), 2}},
	} {
		if l, err := FitLink(bad[0], bad[1], 1e9); err == nil {
			t.Errorf("%v fit %v", bad, l)
		}
	}
}

func TestSingleShotTakesTwoLatenciesAndTwoTransfers(t *testing.T) {
	const elements = 1 << 20
	s := mustBuild(t, AlgorithmSingleShot, Params{World: 3, Elements: elements, HalfBytes: 4 * elements})
	got, err := s.Predict(slices.Repeat([]Link{pcie}, 3))
	if err != nil {
		t.Fatal(err)
	}
	want := 2*pcie.Latency + 4*elements/pcie.Write + 2*4*elements/pcie.Read
	if math.Abs(got/want-1) > 1e-9 {
		t.Errorf("%g s, want %g", got, want)
	}
	if _, err := s.Predict([]Link{pcie}); err == nil {
		t.Error("predicted for too few links")
	}
	s.Batches[0].Signal = 0
	if _, err := s.Predict(slices.Repeat([]Link{pcie}, 3)); err == nil {
		t.Error("predicted a dead-lock")
	}
}

func TestQueuesOfARankShareItsLink(t *testing.T) {
	// Two queues write at once: twice as long as one alone.
	step := func(q Queue) Batch {
		return Batch{Queue: q, Steps: []Step{{Op: Pack, Count: 1000, Dst: Region{Space: Staging}}}}
	}
	s := &Schedule{World: 1, Batches: []Batch{step(Compute), step(Transfer)}}
	got, err := s.Predict([]Link{{Write: 1000, Read: 1, Device: 1e9}})
	if err != nil || got != 8 {
		t.Errorf("%g s, %v; want 8", got, err)
	}
}

func TestCrossovers(t *testing.T) {
	var elements []int64
	for e := int64(1 << 10); e <= 1<<22; e *= 4 {
		elements = append(elements, e)
	}
	base := Params{HalfBytes: 8 << 20, ChunkBytes: 1 << 20, TransferQueue: 1}
	worlds := []int{2, 3, 4, 8, 16, 64}
	if testing.Short() {
		worlds = worlds[:4]
	}
	points := Crossovers(pcie, base, worlds, elements)
	fastest := map[int][]string{}
	for _, p := range points {
		t.Logf("%2d ranks, from %8d elements: %-10s %9.1f us", p.World, p.Elements, p.Algorithm, p.Seconds*1e6)
		fastest[p.World] = append(fastest[p.World], p.Algorithm)
	}
	for _, n := range worlds {
		names := fastest[n]
		if len(names) < 2 || names[0] != AlgorithmSingleShot {
			t.Errorf("%d ranks: %v, want single-shot for small tensors and another one for large", n, names)
			continue
		}
		if last := names[len(names)-1]; n >= 4 && last != AlgorithmTwoShot && last != AlgorithmRing {
			t.Errorf("%d ranks: %s for large tensors, which moves O(n^2) bytes", n, last)
		}
	}
	if got := Crossovers(pcie, Params{}, worlds, elements); len(got) != 0 {
		t.Errorf("without staging: %v", got)
	}
}
