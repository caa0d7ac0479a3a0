package allreduce

// Wire is the element type that crosses between ranks.
type Wire uint8

const (
	F32  Wire = iota // exact: the bits of the host's own reduction
	F16              // IEEE binary16, block-scaled: see F16Block
	BF16             // the upper half of a float32, rounded to nearest even
)

// F16Block is the number of elements that share one scale on an F16 wire.
// The scale is 2^k with the least k in 0..112 for which the block's largest
// finite magnitude, divided by 2^k, is below 65520 and so rounds to a finite
// half; finite quotients are clamped to +-65504, which only matters at k = 112.
// So no finite value becomes infinite, neither encoded nor decoded. Blocks are
// counted from the start of a region.
const F16Block = 256

func (w Wire) String() string {
	return [...]string{"f32", "f16", "bf16"}[w]
}

// Bytes is the size of count encoded elements: 4 or 2 bytes each and, for F16,
// one 4-byte scale for each block begun, behind the elements at the next
// multiple of 4 bytes.
func (w Wire) Bytes(count int64) int64 {
	switch w {
	case F32:
		return 4 * count
	case BF16:
		return (2*count + 3) &^ 3
	default:
		return (2*count+3)&^3 + 4*((count+F16Block-1)/F16Block)
	}
}
