package allreduce

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestHalfRoundTripsEveryValue(t *testing.T) {
	for h := range 1 << 16 {
		x := fromHalf(uint16(h))
		if got := toHalf(x, 0); got != uint16(h) && (x == x || fromHalf(got) == fromHalf(got)) {
			t.Fatalf("half %#04x is %g, which encodes as %#04x", h, x, got)
		}
	}
}

// nearest is the even-rounded neighbour of x among the values of bits lo and
// lo+1, worked out in float64.
func nearest(x float64, lo uint32, value func(uint32) float64) uint32 {
	below, above := x-value(lo), value(lo+1)-x
	if below < above || below == above && lo%2 == 0 {
		return lo
	}
	return lo + 1
}

func TestHalfRoundsToNearestEven(t *testing.T) {
	value := func(h uint32) float64 { return float64(fromHalf(uint16(h))) }
	for h := uint32(0); h < 0x7bff; h++ {
		mid := (value(h) + value(h+1)) / 2
		for _, x := range []float32{float32(value(h)), float32(mid),
			math.Nextafter32(float32(mid), 0), math.Nextafter32(float32(mid), 1e9)} {
			want := uint16(nearest(float64(x), h, value))
			if got := toHalf(x, 0); got != want {
				t.Fatalf("%g encodes as %#04x, want %#04x", x, got, want)
			}
			if got := toHalf(-x, 0); got != want|0x8000 {
				t.Fatalf("%g encodes as %#04x, want %#04x", -x, got, want|0x8000)
			}
		}
	}
	if got := toHalf(65519.99, 0); got != 0x7bff {
		t.Errorf("65519.99 encodes as %#04x, want 0x7bff", got)
	}
}

func TestBF16RoundsToNearestEven(t *testing.T) {
	value := func(b uint32) float64 { return float64(math.Float32frombits(b << 16)) }
	for b := uint32(0); b < maxBF16; b++ {
		mid := b<<16 | 0x8000
		for _, bits := range []uint32{b << 16, mid - 1, mid, mid + 1} {
			x := math.Float32frombits(bits)
			if got, want := toBF16(x), uint16(nearest(float64(x), b, value)); got != want {
				t.Fatalf("%g encodes as %#04x, want %#04x", x, got, want)
			}
		}
	}
}

func TestSpecialValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	tiny, negZero := float32(math.SmallestNonzeroFloat32), float32(math.Copysign(0, -1))
	src := []float32{inf, -inf, nan, math.MaxFloat32, -math.MaxFloat32, tiny, negZero, 1}
	for wire, want := range map[Wire][]float32{
		F32:  src,
		BF16: {inf, -inf, nan, fromBF16(maxBF16), -fromBF16(maxBF16), tiny, negZero, 1},
		F16:  {inf, -inf, nan, maxHalf * pow2(112), -maxHalf * pow2(112), 0, negZero, 0},
	} {
		got := slices.Clone(src)
		wire.Round(got)
		if wire == BF16 {
			want[5] = 0 // below half of the least bfloat16
		}
		if !slices.EqualFunc(got, want, sameBits) {
			t.Errorf("%v: %v, want %v", wire, got, want)
		}
	}
}

func fromBF16(b uint32) float32 { return math.Float32frombits(b << 16) }

func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func TestF16ScaleIsOneUnlessNeeded(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, test := range []struct {
		largest float32
		scale   float32
	}{
		{0, 1}, {1e-30, 1}, {65504, 1}, {65519, 1}, {65520, 2}, {131039, 2}, {131040, 4},
		{math.MaxFloat32, pow2(112)}, {pow2(127), pow2(112)},
	} {
		src := make([]float32, F16Block+1)
		src[0], src[1], src[2] = inf, float32(math.NaN()), -test.largest
		buf := make([]byte, F16.Bytes(int64(len(src))))
		F16.Encode(buf, src)
		scales := buf[(2*len(src)+3)&^3:]
		first := math.Float32frombits(binary.LittleEndian.Uint32(scales))
		second := math.Float32frombits(binary.LittleEndian.Uint32(scales[4:]))
		if first != test.scale || second != 1 {
			t.Errorf("largest magnitude %g: scales %g and %g, want %g and 1", test.largest, first, second, test.scale)
		}
	}
}

func TestEncodedLayout(t *testing.T) {
	src := []float32{1, -2, 0.5}
	for wire, want := range map[Wire][]byte{
		F32:  {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0, 0, 0, 0x3f},
		BF16: {0x80, 0x3f, 0, 0xc0, 0, 0x3f, 0, 0},
		F16:  {0, 0x3c, 0, 0xc0, 0, 0x38, 0, 0, 0, 0, 0x80, 0x3f},
	} {
		got := slices.Repeat([]byte{0xee}, int(wire.Bytes(3))+1)
		wire.Encode(got, src)
		if diff := cmp.Diff(append(want, 0xee), got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", wire, diff)
		}
	}
}

// drawFloats draws values of any bits, or all of about one magnitude.
func drawFloats(t *rapid.T) []float32 {
	bits := rapid.Uint32()
	if rapid.Bool().Draw(t, "alike") {
		top := rapid.Uint32Range(0, 254).Draw(t, "exponent")
		bits = rapid.Custom(func(t *rapid.T) uint32 {
			e := min(254, top+rapid.Uint32Range(0, 3).Draw(t, "above"))
			return e<<23 | rapid.Uint32().Draw(t, "fraction")&0x807fffff
		})
	}
	n := rapid.IntRange(1, 2*F16Block+10).Draw(t, "count")
	raw := rapid.SliceOfN(bits, n, n).Draw(t, "bits")
	v := make([]float32, len(raw))
	for i := range raw {
		v[i] = math.Float32frombits(raw[i])
	}
	return v
}

func TestRoundingIsIdempotentAndFiniteAndClose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := drawFloats(t)
		for _, wire := range []Wire{F32, F16, BF16} {
			once := slices.Clone(src)
			wire.Round(once)
			twice := slices.Clone(once)
			wire.Round(twice)
			if !slices.EqualFunc(once, twice, sameBits) {
				t.Fatalf("%v: rounding again changes %v to %v", wire, once, twice)
			}
			for i, x := range src {
				checkRounded(t, wire, src, i, x, once[i])
			}
		}
	})
}

// checkRounded bounds the error of one value: half a unit in the last place of
// the wire's format, or for F16 of its least denormal at the block's scale, and
// twice that where the value was clamped.
func checkRounded(t *rapid.T, wire Wire, src []float32, i int, x, y float32) {
	switch {
	case x != x:
		if y == y {
			t.Fatalf("%v: NaN becomes %g", wire, y)
		}
	case math.IsInf(float64(x), 0):
		if x != y {
			t.Fatalf("%v: %g becomes %g", wire, x, y)
		}
	default:
		bound := 0.0
		switch wire {
		case F16:
			first := i / F16Block * F16Block
			k := halfScale(src[first:min(first+F16Block, len(src))])
			bound = max(math.Abs(float64(x))/1024, math.Ldexp(1, k-25))
		case BF16:
			bound = max(math.Abs(float64(x))/128, math.Ldexp(1, -134))
		}
		if d := math.Abs(float64(x) - float64(y)); !(d <= bound) {
			t.Fatalf("%v: %g becomes %g", wire, x, y)
		}
	}
}

func TestAStepOfABlockIsEncodedAlike(t *testing.T) {
	// A tensor that is cut at multiples of F16Block rounds as the whole does.
	rapid.Check(t, func(t *rapid.T) {
		whole := drawFloats(t)
		parts := slices.Clone(whole)
		F16.Round(whole)
		cut := min(F16Block, len(parts))
		F16.Round(parts[:cut])
		F16.Round(parts[cut:])
		if !slices.EqualFunc(whole, parts, sameBits) {
			t.Fatalf("cut at %d: %v, whole: %v", cut, parts, whole)
		}
	})
}
