package allreduce

import "fmt"

// slicedRound is one round of a schedule that cuts what it moves into a slice
// for each rank, the last ones empty where there are too few elements. Slice c
// has slot c in every rank's staging.
type slicedRound struct {
	*builder
	base   int64 // of the staging half
	stride int64 // bytes between slots
	slices []span
}

// sliced builds a schedule round by round.
func sliced(algorithm string, p Params, build func(slicedRound)) (*Schedule, error) {
	b, err := newBuilder(algorithm, p)
	if err != nil {
		return nil, err
	}
	rounds, err := b.slicedRounds()
	if err != nil {
		return nil, err
	}
	for i, r := range rounds {
		slices := r.slices(b.World)
		build(slicedRound{builder: b, base: b.base(i), stride: b.Wire.stride(slices[0].count), slices: slices})
		b.s.Rounds++
	}
	return b.s, nil
}

// slicedRounds cuts the tensor into rounds of which every rank's slice fits a
// slot of the staging half: World slots, or fewer where a small tensor has
// fewer slices.
func (b *builder) slicedRounds() ([]span, error) {
	whole := span{0, b.Elements}
	slices := whole.slices(b.World)
	size, used := slices[0].count, int64(0)
	for _, s := range slices {
		if s.count > 0 {
			used++
		}
	}
	fits := used*b.Wire.stride(size) <= b.HalfBytes
	if fits && (b.ChunkBytes == 0 || b.Wire.Bytes(size) <= b.ChunkBytes) {
		return []span{whole}, nil
	}
	n := int64(b.World)
	size, err := b.chunk(b.HalfBytes / n / OffsetAlign * OffsetAlign)
	if err != nil {
		return nil, fmt.Errorf("%w in each of %d slots", err, n)
	}
	return split(b.Elements, n*size), nil
}
