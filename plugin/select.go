package plugin

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/vkimpl"
)

// selection is the only place that decides how a reduction is done: which
// algorithm and which wire type for a tensor of so many bytes.
type selection struct {
	rules []rule // ascending, from 0 to maxBytes without a gap
	wire  allreduce.Wire
	// wireFrom is the size from which wire is used; below it is F32.
	wireFrom int64
	source   string // where the rules come from, for the log
	relay    bool   // the communicator has one
}

// rule is an algorithm for sizes from <= bytes < to.
type rule struct {
	algorithm string
	from, to  int64
}

const maxBytes = math.MaxInt64

// defaultWireFrom keeps generated tokens and small batches at full precision
// (1 MiB is 64 tokens of 4096 elements); above it bandwidth is all.
const defaultWireFrom = 1 << 20

// table is what is used where calibration is not possible. Two ranks: as two
// H200 measured, where single-shot and two-shot meet at 4 to 16 MiB with either
// wire. More: from the cost model at 20 us a hop and 24 GB/s a direction.
func table(world int) []rule {
	if world == 2 {
		return []rule{{allreduce.AlgorithmSingleShot, 0, 8 << 20}, {allreduce.AlgorithmTwoShot, 8 << 20, maxBytes}}
	}
	return []rule{{allreduce.AlgorithmSingleShot, 0, 256 << 10}, {allreduce.AlgorithmTwoShot, 256 << 10, maxBytes}}
}

// algorithm for a tensor of so many bytes. A relay that a rule asks for and that
// cannot take the tensor gives way to single-shot.
func (s *selection) algorithm(bytes int64) string {
	for _, r := range s.rules {
		if bytes >= r.to {
			continue
		}
		if r.algorithm == allreduce.AlgorithmRelay && (!s.relay || bytes > relayBytes) {
			break
		}
		return r.algorithm
	}
	return allreduce.AlgorithmSingleShot
}

// relayBytes is the most that the relay takes.
const relayBytes = 4 * allreduce.RelayElements

// wireFor a tensor of so many bytes.
func (s *selection) wireFor(bytes int64) allreduce.Wire {
	if bytes >= s.wireFrom {
		return s.wire
	}
	return allreduce.F32
}

// chunkBytes bounds a step of an algorithm on a tensor of so many bytes; limit
// is what a kernel can do.
func (s *selection) chunkBytes(algorithm string, bytes, limit int64) int64 {
	if algorithm != allreduce.AlgorithmPipeline {
		return limit
	}
	return min(limit, allreduce.PipelineChunk(s.wireFor(bytes).Bytes(bytes/4)))
}

// transferQueues is the ranks whose copy queue writes for them. Not on NVIDIA: a
// copy queue beside a kernel moves 27 GB/s each way, two kernels 34 to 39 (H200).
func transferQueues(ranks *vkimpl.Ranks) uint64 {
	const nvidia = 0x10de
	mask := ranks.TransferQueues()
	for rank, d := range ranks.Devices {
		if d.VendorID == nvidia {
			mask &^= 1 << rank
		}
	}
	return mask
}

// String describes the choice for the log, in the syntax of GGML_VK_COMM_ALGO.
func (s *selection) String() string {
	var parts []string
	for _, r := range s.rules {
		parts = append(parts, fmt.Sprintf("%s:%s-%s", r.algorithm, formatBytes(r.from), formatBytes(r.to)))
	}
	wire := "wire f32"
	if s.wire != allreduce.F32 {
		wire = fmt.Sprintf("wire %s from %s", s.wire, formatBytes(s.wireFrom))
	}
	return fmt.Sprintf("%s (%s), %s", strings.Join(parts, ","), s.source, wire)
}

// usesWide reports whether any size goes over a 16-bit wire.
func (s *selection) usesWide() bool { return s.wire != allreduce.F32 }

// newSelection is the choice before calibration: what the environment forces,
// else the table.
func newSelection(c *Config, world int) (s selection, forced bool) {
	s = selection{rules: table(world), wire: c.Wire, wireFrom: defaultWireFrom, source: "default table"}
	if c.FP32 {
		s.wire = allreduce.F32
	}
	if c.Ring {
		s.useRing()
		s.source = "ring by environment"
	}
	if c.Algo != nil {
		s.rules, s.source = c.Algo, "set by environment"
		return s, true
	}
	return s, c.Ring
}

// useRing puts the ring in the place of whatever reduces large tensors.
func (s *selection) useRing() {
	rules := append([]rule(nil), s.rules...)
	rules[len(rules)-1].algorithm = allreduce.AlgorithmRing
	s.rules = rules
}

// parseAlgo reads `singleshot:0-256K,pipeline:256K-max`: ranges that touch, from
// 0 to max, with sizes in bytes, K or M (2^10, 2^20).
func parseAlgo(text string) ([]rule, bool) {
	var rules []rule
	next := int64(0)
	for _, part := range strings.Split(text, ",") {
		name, span, ok := strings.Cut(part, ":")
		from, to, ok2 := strings.Cut(span, "-")
		low, ok3 := parseBytes(from)
		high, ok4 := parseBytes(to)
		if !ok || !ok2 || !ok3 || !ok4 || low != next || high <= low || !isAlgorithm(name) {
			return nil, false
		}
		rules = append(rules, rule{name, low, high})
		next = high
	}
	if next != maxBytes {
		return nil, false
	}
	return rules, true
}

func isAlgorithm(name string) bool { return slices.Contains(algorithmNames(), name) }

// algorithmNames are those that GGML_VK_COMM_ALGO accepts.
func algorithmNames() []string { return append(allreduce.Algorithms(), allreduce.AlgorithmRelay) }

// wantsRelay reports whether a rule asks for it.
func (s *selection) wantsRelay() bool {
	return slices.ContainsFunc(s.rules, func(r rule) bool { return r.algorithm == allreduce.AlgorithmRelay })
}

func parseBytes(text string) (int64, bool) {
	if text == "max" {
		return maxBytes, true
	}
	shift := 0
	switch {
	case strings.HasSuffix(text, "K"):
		shift = 10
	case strings.HasSuffix(text, "M"):
		shift = 20
	}
	if shift > 0 {
		text = text[:len(text)-1]
	}
	n, err := strconv.ParseInt(text, 10, 40)
	return n << shift, err == nil && n >= 0
}

func formatBytes(n int64) string {
	switch {
	case n == maxBytes:
		return "max"
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + "M"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.FormatInt(n>>10, 10) + "K"
	}
	return strconv.FormatInt(n, 10)
}
