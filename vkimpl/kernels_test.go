package vkimpl

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ggmlvkcomm/allreduce"
)

// Pack and unpack against the reference encoding of package allreduce, bit by bit.

// halves16 packs 16-bit values into words.
func halves16(v []uint16) []uint32 {
	out := make([]uint32, (len(v)+1)/2)
	for i, h := range v {
		out[i/2] |= uint32(h) << (16 * (i % 2))
	}
	return out
}

func bytesOf(words []uint32) []byte {
	var out []byte
	for _, w := range words {
		out = binary.LittleEndian.AppendUint32(out, w)
	}
	return out
}

// encode is what a region of values becomes on a wire, in words.
func encode(wire allreduce.Wire, v []float32) []uint32 {
	raw := make([]byte, wire.Bytes(int64(len(v))))
	wire.Encode(raw, v)
	out := make([]uint32, len(raw)/4)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(raw[4*i:])
	}
	return out
}

// decodeOnDevice puts words into staging and lets a kernel decode count elements.
func (g *rig) decodeOnDevice(wire allreduce.Wire, words []uint32, count int64) []uint32 {
	g.t.Helper()
	g.reset()
	in := g.take(int64(len(words)), 0)
	copy(g.part(0, in[0], int64(len(words))), words)
	g.move(0, int64(len(words)), allreduce.StagingAt(0, 0), allreduce.TensorAt(0, 0), in[0])
	out := g.take(count, 3)
	g.step(0, wire, out, allreduce.Step{Op: allreduce.Unpack, Count: count, Dst: allreduce.TensorAt(0, 0),
		Srcs: []allreduce.Region{allreduce.StagingAt(0, 0)}})
	return slices.Clone(g.part(0, out[0], count))
}

func TestEveryEncodedValueIsDecoded(t *testing.T) {
	const count = 1 << 16
	g := openRig(t, 1, 1<<20, 1<<18)
	all := make([]uint16, count)
	for i := range all {
		all[i] = uint16(i)
	}
	for _, k := range []uint32{0, 1, 63, 112} {
		words := halves16(all)
		for range count / allreduce.F16Block {
			words = append(words, (127+k)<<23)
		}
		want := make([]float32, count)
		allreduce.F16.Decode(want, bytesOf(words))
		expect(t, fmt.Sprintf("f16 at 2^%d", k), g.decodeOnDevice(allreduce.F16, words, count), bitsOf(want))
	}
	want := make([]float32, count)
	allreduce.BF16.Decode(want, bytesOf(halves16(all)))
	expect(t, "bf16", g.decodeOnDevice(allreduce.BF16, halves16(all), count), bitsOf(want))
}

// encodeOnDevice packs values at an offset of so many floats, and checks that
// the staging, the tensor and all around them hold what they should.
func (g *rig) encodeOnDevice(t fataler, what string, wire allreduce.Wire, v []uint32, distance int64) {
	g.t.Helper()
	count, words := int64(len(v)), wire.Bytes(int64(len(v)))/4
	const around = 3
	g.reset()
	in := g.take(count, distance)
	copy(g.part(0, in[0], count), v)
	out := g.take(words+around, 2)
	// The staging begins as canaries, which show what is left alone.
	g.move(0, words+around, allreduce.StagingAt(0, 0), allreduce.TensorAt(0, 0), out[0])
	g.step(0, wire, in, allreduce.Step{Op: allreduce.Pack, Count: count, Dst: allreduce.StagingAt(0, 0),
		Srcs: []allreduce.Region{allreduce.TensorAt(0, 0)}})
	g.move(0, words+around, allreduce.TensorAt(0, 0), allreduce.StagingAt(0, 0), out[0])

	rounded := floatsOf(v)
	want := append(encode(wire, rounded), slices.Repeat([]uint32{canary}, around)...)
	got := g.part(0, out[0], words+around)
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: %d elements of %v: word %d of %d is %#08x, want %#08x", what, count, wire, i, words, got[i], want[i])
		}
	}
	wire.Round(rounded)
	want = slices.Repeat([]uint32{canary}, int(g.used))
	copy(want[in[0].Offset/4:], bitsOf(rounded))
	copy(want[out[0].Offset/4:], got)
	for i, w := range g.words(0)[:g.used] {
		if !sameBits(w, want[i]) {
			t.Fatalf("%s: %d elements of %v at %d: word %d of the tensor is %#08x, want %#08x", what, count, wire, distance, i, w, want[i])
		}
	}
}

// fataler is what testing.T and rapid.T have in common.
type fataler interface {
	Fatalf(format string, args ...any)
}

// roundingCases are, for each finite 16-bit value, itself, the middle between
// it and the next one, and the floats beside the middle, of both signs.
func roundingCases(wire allreduce.Wire) []uint32 {
	var out []uint32
	add := func(bits uint32) { out = append(out, bits, bits|1<<31) }
	if wire == allreduce.BF16 {
		for b := range uint32(0x7f80) {
			for _, low := range []uint32{0, 0x7fff, 0x8000, 0x8001, 0xffff} {
				add(b<<16 | low)
			}
		}
		return out
	}
	value := make([]float32, 0x7c01)
	raw := make([]byte, wire.Bytes(allreduce.F16Block))
	binary.LittleEndian.PutUint32(raw[4:], 1<<23*127) // the scale behind 1 or 2 elements
	for h := range uint32(0x7c00) {
		binary.LittleEndian.PutUint32(raw, h)
		wire.Decode(value[h:h+1], raw)
	}
	value[0x7c00] = 65536 // where the next half would be
	for h := range 0x7c00 {
		middle := math.Float32bits((value[h] + value[h+1]) / 2)
		add(math.Float32bits(value[h]))
		add(middle - 1)
		add(middle)
		add(middle + 1)
	}
	return out
}

func TestEveryBoundaryIsRoundedToEven(t *testing.T) {
	g := openRig(t, 1, 4<<20, 1<<20)
	for _, wire := range []allreduce.Wire{allreduce.F16, allreduce.BF16} {
		cases := roundingCases(wire)
		g.encodeOnDevice(t, "boundaries", wire, cases, 1)
		// Once more with blocks of every scale: the exponents are raised, and
		// the order is shuffled so that blocks hold large and small values.
		rng := seeded(7)
		rng.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
		for i := range cases {
			if a := cases[i] &^ (1 << 31); a >= 1<<23 {
				up := min(uint32(i/allreduce.F16Block%128), 254-a>>23)
				cases[i] += up << 23
			}
		}
		g.encodeOnDevice(t, "raised boundaries", wire, cases, 0)
	}
}

// drawBits draws values of any bits, or all of about one magnitude, or those
// that are special.
func drawBits(t *rapid.T) []uint32 {
	n := rapid.OneOf(rapid.IntRange(1, 2*allreduce.F16Block+10),
		rapid.SampledFrom([]int{1, 2, 255, 256, 257, 511, 512, 513})).Draw(t, "count")
	seed := rapid.Uint64().Draw(t, "seed")
	kind := rapid.IntRange(0, 3).Draw(t, "kind")
	top := rapid.Uint32Range(0, 254).Draw(t, "exponent")
	special := []uint32{0, 1, 1 << 31, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff,
		0x477fefff, 0x477ff000, 0xc77ff000, 0x47800000, 0x33000000, 0x33000001, 0x32ffffff, 0x387fffff, 0x38800000, 0x007fffff}
	rng := seeded(seed)
	v := make([]uint32, n)
	for i := range v {
		switch kind {
		case 0:
			v[i] = rng.Uint32()
		case 1:
			v[i] = min(254, top+rng.Uint32N(4))<<23 | rng.Uint32()&0x807fffff
		case 2:
			v[i] = special[rng.IntN(len(special))]
		default: // NaN and infinities alone
			v[i] = 0x7f800000 | rng.Uint32N(2)<<31 | rng.Uint32N(2)*rng.Uint32N(1<<23)
		}
	}
	return v
}

func TestPackIsTheReferenceEncoding(t *testing.T) {
	g := openRig(t, 1, 1<<16, 1<<13)
	rapid.Check(t, func(t *rapid.T) {
		v := drawBits(t)
		distance := rapid.Int64Range(0, 70).Draw(t, "offset")
		for _, wire := range []allreduce.Wire{allreduce.F32, allreduce.F16, allreduce.BF16} {
			g.encodeOnDevice(t, "drawn", wire, v, distance)
		}
	})
}
