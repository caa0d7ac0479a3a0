package allreduce

import (
	"encoding/binary"
	"math"
)

// The reference encoding of each wire type, which the kernels follow bit for
// bit, NaN payloads excepted.

const (
	inf32   = 0x7f800000 // bits of +Inf; above it, with the sign cleared: NaN
	abs32   = 0x7fffffff // clears the sign
	maxHalf = 65504      // largest finite binary16 value
	// halfOverflow is the bits of 65520, the least float32 that rounds to
	// an infinite binary16 value.
	halfOverflow = 0x477ff000
	// maxHalfScale bounds k in an F16 block's scale 2^k: 65504 * 2^112 is
	// the largest half that still decodes to a finite float32 there.
	maxHalfScale = 112
	maxBF16      = 0x7f7f // bits of the largest finite bfloat16 value
)

// Encode writes src into dst, of which it uses w.Bytes(len(src)) bytes; padding
// is zero. Values are rounded to nearest even; NaN and infinities pass, and a
// finite value never becomes infinite.
func (w Wire) Encode(dst []byte, src []float32) {
	switch w {
	case F32:
		for i, x := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
		}
	case BF16:
		for i, x := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], toBF16(x))
		}
		padHalves(dst, len(src))
	case F16:
		scales := dst[padHalves(dst, len(src)):]
		for first := 0; first < len(src); first += F16Block {
			block := src[first:min(first+F16Block, len(src))]
			k := halfScale(block)
			for i, x := range block {
				binary.LittleEndian.PutUint16(dst[2*(first+i):], toHalf(x, k))
			}
			binary.LittleEndian.PutUint32(scales[4*(first/F16Block):], math.Float32bits(pow2(k)))
		}
	}
}

// Decode reads len(dst) elements from src, as Encode wrote them.
func (w Wire) Decode(dst []float32, src []byte) {
	switch w {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case F16:
		scales := src[(2*len(dst)+3)&^3:]
		for i := range dst {
			scale := math.Float32frombits(binary.LittleEndian.Uint32(scales[4*(i/F16Block):]))
			dst[i] = fromHalf(binary.LittleEndian.Uint16(src[2*i:])) * scale
		}
	}
}

// Round replaces each value of v, a region of its own, by what a peer decodes
// for it. Rounding twice is rounding once.
func (w Wire) Round(v []float32) {
	if w == F32 {
		return
	}
	buf := make([]byte, w.Bytes(int64(len(v))))
	w.Encode(buf, v)
	w.Decode(v, buf)
}

// padHalves clears the padding behind count 2-byte elements and returns where
// it ends.
func padHalves(dst []byte, count int) int {
	end := (2*count + 3) &^ 3
	clear(dst[2*count : end])
	return end
}

// halfScale is the least k >= 0 for which the largest finite magnitude of the
// block, divided by 2^k, rounds to a finite half; at most maxHalfScale, where
// toHalf clamps.
func halfScale(block []float32) int {
	var largest uint32
	for _, x := range block {
		if a := math.Float32bits(x) & abs32; a < inf32 {
			largest = max(largest, a)
		}
	}
	if largest < halfOverflow {
		return 0
	}
	k := int(largest>>23) - 127 - 15 // now in [2^15, 2^16)
	if largest&0x7fffff >= halfOverflow&0x7fffff {
		k++
	}
	return min(k, maxHalfScale)
}

// pow2 is 2^k for k in -126..127.
func pow2(k int) float32 { return math.Float32frombits(uint32(127+k) << 23) }

// toHalf is the binary16 nearest to x/2^k, finite if x is.
func toHalf(x float32, k int) uint16 {
	if math.Float32bits(x)&abs32 < inf32 {
		x = min(max(x*pow2(-k), -maxHalf), maxHalf)
	}
	b := math.Float32bits(x)
	sign, a := uint16(b>>16)&0x8000, b&abs32
	switch {
	case a > inf32:
		return sign | 0x7e00 | uint16(a>>13)&0x1ff // quiet NaN
	case a == inf32:
		return sign | 0x7c00
	case a >= 113<<23: // at least 2^-14, a normal half
		return sign | uint16((a+0xfff+a>>13&1-112<<23)>>13)
	case a < 102<<23: // below 2^-25, half of the least denormal
		return sign
	}
	shift := 126 - a>>23 // 14 to 24
	m := a&0x7fffff | 0x800000
	return sign | uint16((m+1<<(shift-1)-1+m>>shift&1)>>shift)
}

// fromHalf is the value of a binary16.
func fromHalf(h uint16) float32 {
	sign, e, m := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch e {
	case 0: // zero or denormal: m * 2^-24, exact
		return math.Float32frombits(math.Float32bits(float32(m)*pow2(-24)) | sign)
	case 31:
		return math.Float32frombits(sign | inf32 | m<<13)
	}
	return math.Float32frombits(sign | (e+112)<<23 | m<<13)
}

// toBF16 is the bfloat16 nearest to x, finite if x is.
func toBF16(x float32) uint16 {
	b := math.Float32bits(x)
	switch a := b & abs32; {
	case a > inf32:
		return uint16(b>>16) | 0x40 // quiet NaN
	case a == inf32:
		return uint16(b >> 16)
	case a > maxBF16<<16:
		return uint16(b>>16)&0x8000 | maxBF16
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
