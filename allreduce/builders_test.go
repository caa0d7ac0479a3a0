package allreduce

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// drawParams draws one reduction that the algorithm can be built for.
func drawParams(t *rapid.T, algorithm string, world int, halfBytes int64) Params {
	p := Params{
		World:         world,
		Wire:          Wire(rapid.IntRange(0, 2).Draw(t, "wire")),
		HalfBytes:     halfBytes,
		ZeroRanks:     rapid.Uint64().Draw(t, "zero") & rapid.Uint64().Draw(t, "zero too") >> (64 - world),
		TransferQueue: rapid.Uint64().Draw(t, "transfer") >> (64 - world),
	}
	if rapid.Bool().Draw(t, "bounded") {
		p.ChunkBytes = p.Wire.Bytes(F16Block * int64(rapid.IntRange(1, 4).Draw(t, "blocks")))
	}
	// Up to some five rounds of single blocks.
	perRound := halfBytes / p.Wire.stride(F16Block) * F16Block
	if algorithm == AlgorithmTwoShot || algorithm == AlgorithmRing {
		perRound = min(perRound, int64(world)*4*F16Block)
	}
	p.Elements = rapid.Int64Range(1, 5*perRound).Draw(t, "elements")
	if rapid.Bool().Draw(t, "small") {
		p.Elements = rapid.Int64Range(1, 600).Draw(t, "few elements")
	}
	return p
}

// drawChain draws reductions of any algorithms, sizes, wires and masks on the
// same ranks.
func drawChain(t *rapid.T, tb testing.TB, world, most int) []*Schedule {
	// World slots of one F32 block are the least that a sliced round needs.
	halfBytes := int64(world) * 1024 * int64(rapid.IntRange(1, 2).Draw(t, "half"))
	c := chain{half: rapid.IntRange(0, 1).Draw(t, "first half")}
	for range rapid.IntRange(1, most).Draw(t, "reductions") {
		algorithm := rapid.SampledFrom(Algorithms()).Draw(t, "algorithm")
		c.add(tb, algorithm, drawParams(t, algorithm, world, halfBytes))
	}
	return c.seq
}

func TestAnySequenceIsProvenAndComputesTheDocumentedSum(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seq := drawChain(rt, t, rapid.IntRange(2, 6).Draw(rt, "world"), 5)
		if err := Check(seq); err != nil {
			rt.Fatal(err)
		}
		seed := rapid.Uint64().Draw(rt, "seed")
		if err := simulate(seq, seeded(seed), nil); err != nil {
			rt.Fatalf("in submission order: %v", err)
		}
		if err := simulate(seq, seeded(seed), seeded(seed)); err != nil {
			rt.Fatalf("in another order: %v", err)
		}
	})
}

func TestAnyWorldIsProven(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		world := rapid.IntRange(2, maskBits).Draw(rt, "world")
		sliced := rapid.Bool().Draw(rt, "sliced")
		// Slots for one block a rank, or one or two slots in all.
		algorithms, blocks := []string{AlgorithmSingleShot, AlgorithmPipeline}, rapid.IntRange(1, 2).Draw(rt, "blocks")
		if sliced {
			algorithms, blocks = []string{AlgorithmTwoShot, AlgorithmRing}, world
		}
		halfBytes := int64(blocks) * F32.stride(F16Block)
		var c chain
		for range rapid.IntRange(1, 3).Draw(rt, "reductions") {
			algorithm := rapid.SampledFrom(algorithms).Draw(rt, "algorithm")
			p := drawParams(rt, algorithm, world, halfBytes)
			p.ChunkBytes = 0
			p.Elements = rapid.Int64Range(1, min(p.Elements, 3*halfBytes/4)).Draw(rt, "fewer elements")
			c.add(t, algorithm, p)
		}
		if err := Check(c.seq); err != nil {
			rt.Fatal(err)
		}
	})
}

func TestLargeWorldsAreProven(t *testing.T) {
	for _, world := range []int{7, 8, 16, 31, 63, 64} {
		c := chain{}
		p := Params{World: world, HalfBytes: int64(world) * 1024}
		most := ^uint64(0) >> (64 - world)
		for i, algorithm := range Algorithms() {
			p.Wire = Wire(i % 3)
			p.ZeroRanks = 1<<(world-1) | 1<<(i+1)
			p.TransferQueue = most &^ 4
			p.ChunkBytes = 0
			if algorithm == AlgorithmPipeline {
				p.ChunkBytes = p.HalfBytes / 2
			}
			p.Elements = p.HalfBytes/4 + 300 // two rounds with an F32 wire
			c.add(t, algorithm, p)
			p.Elements = 17
			p.ZeroRanks = 0
			c.add(t, algorithm, p)
		}
		if err := Check(c.seq); err != nil {
			t.Errorf("%d ranks: %v", world, err)
		}
	}
}

func TestEveryZeroMaskOfSmallWorlds(t *testing.T) {
	for _, algorithm := range Algorithms() {
		for world := 2; world <= 4; world++ {
			c := chain{}
			for mask := uint64(0); mask < 1<<world; mask++ {
				p := Params{World: world, Elements: 700, Wire: Wire(mask % 3), HalfBytes: 4096,
					ChunkBytes: 1024, ZeroRanks: mask, TransferQueue: mask >> 1}
				c.add(t, algorithm, p)
			}
			if err := Check(c.seq); err != nil {
				t.Errorf("%s, %d ranks: %v", algorithm, world, err)
			}
			if err := simulate(c.seq, seeded(1), seeded(2)); err != nil {
				t.Errorf("%s, %d ranks: %v", algorithm, world, err)
			}
		}
	}
}

func TestSingleShotIsOneGatherAndOneReduceARank(t *testing.T) {
	s := mustBuild(t, AlgorithmSingleShot, Params{World: 3, Elements: 1000, HalfBytes: 4096, ZeroRanks: 2})
	var order []string
	for _, b := range s.Batches {
		name := "nothing"
		if len(b.Steps) > 0 {
			name = b.Steps[0].Op.String()
		}
		order = append(order, fmt.Sprint(name, " ", b.Rank, " ", b.Signal))
	}
	want := "[pack 0 1 nothing 1 1 pack 2 1 reduce 2 0 reduce 1 0 reduce 0 0]"
	if got := fmt.Sprint(order); got != want {
		t.Errorf("batches %s, want %s", got, want)
	}
}

func TestChunksFillTheHalfAndKeepBlocksWhole(t *testing.T) {
	p := Params{World: 2, Elements: 5000, HalfBytes: 8192}
	for _, test := range []struct {
		wire       Wire
		chunkBytes int64
		rounds     int
		count      int64
	}{
		{F32, 0, 3, 2048},
		{BF16, 0, 2, 4096},
		{F16, 0, 2, 15 * F16Block}, // 15 * 516 bytes fit, 16 * 516 do not
		{F32, 1500, 20, F16Block},
		{F32, 5 << 20, 3, 2048},
	} {
		p.Wire, p.ChunkBytes = test.wire, test.chunkBytes
		s := mustBuild(t, AlgorithmSingleShot, p)
		if count := s.Batches[0].Steps[0].Count; s.Rounds != test.rounds || count != test.count {
			t.Errorf("%v, chunks of %d bytes: %d rounds of %d elements, want %d of %d",
				test.wire, test.chunkBytes, s.Rounds, count, test.rounds, test.count)
		}
	}
}

func TestBuildersRefuse(t *testing.T) {
	good := Params{World: 2, Elements: 1000, HalfBytes: 4096}
	for name, spoil := range map[string]func(p *Params){
		"one rank":         func(p *Params) { p.World = 1 },
		"65 ranks":         func(p *Params) { p.World = 65 },
		"no elements":      func(p *Params) { p.Elements = 0 },
		"2^50 elements":    func(p *Params) { p.Elements = 1 << 50 },
		"third half":       func(p *Params) { p.Half = 2 },
		"odd half size":    func(p *Params) { p.HalfBytes = 4000 },
		"unknown wire":     func(p *Params) { p.Wire = 3 },
		"unknown rank":     func(p *Params) { p.ZeroRanks = 4 },
		"unknown transfer": func(p *Params) { p.TransferQueue = 4 },
		"negative chunk":   func(p *Params) { p.ChunkBytes = -1 },
		"chunk too small":  func(p *Params) { p.ChunkBytes = 1023 },
		"half too small":   func(p *Params) { p.HalfBytes = 768 },
	} {
		p := good
		spoil(&p)
		for _, algorithm := range Algorithms() {
			if s, err := Build(algorithm, p); err == nil {
				t.Errorf("%s built for %s: %d batches", algorithm, name, len(s.Batches))
			}
		}
	}
	if _, err := Build("tree", good); err == nil {
		t.Error("an unknown algorithm was built")
	}
}

func TestSlicedAlgorithmsStayWithinTheBandwidthBound(t *testing.T) {
	for _, algorithm := range []string{AlgorithmTwoShot, AlgorithmRing} {
		for world := 2; world <= 16; world++ {
			for _, wire := range []Wire{F32, F16, BF16} {
				n := int64(world)
				p := Params{World: world, Elements: 40 * n * F16Block, Wire: wire, HalfBytes: n * 16384}
				s := mustBuild(t, algorithm, p)
				// One block a hop and round may be lost to rounding.
				bound := 2*(n-1)*wire.Bytes(p.Elements)/n + int64(s.Rounds)*2*(n-1)*wire.Bytes(F16Block)
				for rank := range world {
					written, read := s.HostBytes(rank)
					if written > bound || read > bound {
						t.Errorf("%s %v, rank %d of %d: %d bytes written, %d read, want at most %d",
							algorithm, wire, rank, world, written, read, bound)
					}
				}
			}
		}
	}
}

func TestPipelineKeepsBothDirectionsBusy(t *testing.T) {
	// Device-local work is taken out, so that only the two directions count.
	link := Link{Write: 1e9, Read: 1e9, Device: 1e18}
	p := Params{World: 2, Elements: 1 << 16, HalfBytes: 1 << 16, ChunkBytes: 1 << 13, TransferQueue: 3}
	s := mustBuild(t, AlgorithmPipeline, p)
	got, err := s.Predict([]Link{link, link})
	if err != nil {
		t.Fatal(err)
	}
	// Reading lags one chunk behind writing, over all rounds.
	want := float64(4*p.Elements+p.ChunkBytes) / link.Read
	if got < want*0.999 || got > want*1.001 {
		t.Errorf("%g s, want %g", got, want)
	}
}
