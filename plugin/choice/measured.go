package choice

import (
	"math"
	"time"

	"ggmlvkcomm/allreduce"
)

const (
	// Limit bounds what a comm_init spends on measuring. Sizes that it does not reach,
	// on slow links, keep the default table.
	Limit = 100 * time.Millisecond
	// Passes: the best of so many is taken.
	Passes = 3
	// Largest of Sizes: at 16 MiB chunks gain what larger tensors gain.
	Largest = 16 << 20
	// small: below it fixed costs are all, and an algorithm with chunks is
	// single-shot with more of them.
	small = 128 << 10
	// margin is how much faster than single-shot another algorithm must be: less
	// is noise, and fewer steps are less to go wrong.
	margin = 0.9
	// relayMargin: in use the relay saves the host a submission a rank as well,
	// which reductions queued back to back do not show. On two H200, where they
	// take 16 us with it and 22 with single-shot, a part of a generated token takes
	// 106 us and 116.
	relayMargin = 1
)

// Sizes at which algorithms are measured, in bytes.
var Sizes = []int64{16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, Largest}

// Candidates for automatic choice at a size. The ring associates otherwise than
// stock and is left to who asks for it.
func Candidates(relay bool, bytes int64) []string {
	switch {
	case bytes >= small:
		return []string{allreduce.AlgorithmSingleShot, allreduce.AlgorithmPipeline, allreduce.AlgorithmTwoShot}
	case relay:
		return []string{allreduce.AlgorithmSingleShot, allreduce.AlgorithmRelay}
	}
	return []string{allreduce.AlgorithmSingleShot}
}

// Repeats of a size are queued behind each other, as a model's layers queue
// theirs, so that the wait of the host at the end, 20 to 40 us, counts little:
// more than 1 ms on two H200.
func Repeats(bytes int64) int {
	if bytes < small {
		return 32
	}
	return 4
}

// Fastest turns seconds by algorithm, at each of sizes, into rules: single-shot
// unless others are faster by their margins. An algorithm that was not measured
// at a size has infinity there; where none was, the choice is that of rest. Sizes
// between two measured ones change over at their geometric mean; the smallest
// size's choice holds down to 0, the largest's up to max.
func Fastest(sizes []int64, seconds map[string][]float64, rest Rules) Rules {
	var names []string
	var cuts []int64
	for i, bytes := range sizes {
		name, least := allreduce.AlgorithmSingleShot, math.Inf(1)
		single := seconds[name][i]
		if math.IsInf(single, 1) {
			name = rest.Algorithm(bytes)
		}
		for _, other := range Names() {
			t, ok := seconds[other]
			if ok && other != allreduce.AlgorithmSingleShot && t[i] < single*marginOf(other) && t[i] < least {
				name, least = other, t[i]
			}
		}
		if len(names) == 0 {
			names = append(names, name)
		} else if names[len(names)-1] != name {
			names = append(names, name)
			cuts = append(cuts, geometricMean(sizes[i-1], sizes[i]))
		}
	}
	return rulesOf(names, cuts)
}

func marginOf(algorithm string) float64 {
	if algorithm == allreduce.AlgorithmRelay {
		return relayMargin
	}
	return margin
}

// geometricMean in whole KiB.
func geometricMean(a, b int64) int64 {
	return int64(math.Sqrt(float64(a)*float64(b))) >> 10 << 10
}

// ChunkBytes bounds a step of an algorithm on a tensor that takes so many bytes
// on the wire; limit is what a kernel can do.
func ChunkBytes(algorithm string, encoded, limit int64) int64 {
	if algorithm != allreduce.AlgorithmPipeline {
		return limit
	}
	return min(limit, allreduce.PipelineChunk(encoded))
}

// CopyQueues takes out of mask the ranks whose copy queue is better left alone;
// vendors are their PCI vendors. On NVIDIA a copy queue beside a kernel moves
// 27 GB/s each way, two kernels 34 to 39 (H200).
func CopyQueues(mask uint64, vendors []uint32) uint64 {
	const nvidia = 0x10de
	for rank, vendor := range vendors {
		if vendor == nvidia {
			mask &^= 1 << rank
		}
	}
	return mask
}
