// Package choice decides how a reduction is done: which algorithm serves which
// size, and which wire. It is the only place with thresholds, for the plugin,
// which measures on a context's devices, and for vkcomm, which tells of it.
package choice

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"ggmlvkcomm/allreduce"
)

// Rule is an algorithm for tensors of From <= bytes < To.
type Rule struct {
	Algorithm string
	From, To  int64
}

// Rules are ascending, from 0 to MaxBytes without a gap.
type Rules []Rule

const (
	MaxBytes = math.MaxInt64
	// WireFrom is the size from which a 16-bit wire is used. It keeps generated
	// tokens and small batches at full precision (1 MiB is 64 tokens of 4096
	// elements); above it bandwidth is all.
	WireFrom = 1 << 20
	// RelayBytes: rules give the relay no tensor of so many or more.
	RelayBytes = 4 * allreduce.RelayElements
	// StagingMB is a rank's staging unless it is said otherwise: amdgpu walks an
	// imported buffer's pages at every submission, so it is small.
	StagingMB = 16
)

// Default is what is used where measuring is not possible. Two ranks: as two
// H200 measured, where single-shot and the pipeline meet at 4 to 8 MiB with
// either wire. More: from the cost model at 20 us a hop and 24 GB/s a direction.
func Default(world int) Rules {
	if world == 2 {
		return Rules{{allreduce.AlgorithmSingleShot, 0, 8 << 20}, {allreduce.AlgorithmPipeline, 8 << 20, MaxBytes}}
	}
	return Rules{{allreduce.AlgorithmSingleShot, 0, 256 << 10}, {allreduce.AlgorithmTwoShot, 256 << 10, MaxBytes}}
}

// Algorithm for a tensor of so many bytes.
func (rules Rules) Algorithm(bytes int64) string {
	for _, r := range rules {
		if bytes < r.To {
			return r.Algorithm
		}
	}
	return allreduce.AlgorithmSingleShot
}

// Usable has single-shot where a rule asks for a relay that there is not, or that
// cannot take so much.
func (rules Rules) Usable(relay bool) (usable Rules) {
	for _, r := range rules {
		rest := r
		if r.Algorithm == allreduce.AlgorithmRelay {
			if relay && r.From < RelayBytes {
				r.To = min(r.To, RelayBytes)
				usable = usable.then(r)
				rest.From = r.To
			}
			rest.Algorithm = allreduce.AlgorithmSingleShot
		}
		if rest.From < rest.To {
			usable = usable.then(rest)
		}
	}
	return usable
}

// then appends a rule, to the last one where they are of the same algorithm.
func (rules Rules) then(r Rule) Rules {
	if last := len(rules) - 1; last >= 0 && rules[last].Algorithm == r.Algorithm {
		rules[last].To = r.To
		return rules
	}
	return append(rules, r)
}

// WithLargest has another algorithm in the place of that for the largest sizes.
func (rules Rules) WithLargest(algorithm string) Rules {
	rules = slices.Clone(rules)
	rules[len(rules)-1].Algorithm = algorithm
	return rules
}

// Use reports whether a rule names the algorithm.
func (rules Rules) Use(algorithm string) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.Algorithm == algorithm })
}

// String is in the syntax of GGML_VK_COMM_ALGO.
func (rules Rules) String() string {
	var parts []string
	for _, r := range rules {
		parts = append(parts, fmt.Sprintf("%s:%s-%s", r.Algorithm, FormatBytes(r.From), FormatBytes(r.To)))
	}
	return strings.Join(parts, ",")
}

// Parse reads `singleshot:0-256K,pipeline:256K-max`: ranges that touch, from 0 to
// max, with sizes in bytes, K or M (2^10, 2^20).
func Parse(text string) (Rules, bool) {
	var rules Rules
	next := int64(0)
	for _, part := range strings.Split(text, ",") {
		name, span, ok := strings.Cut(part, ":")
		from, to, ok2 := strings.Cut(span, "-")
		low, ok3 := parseBytes(from)
		high, ok4 := parseBytes(to)
		if !ok || !ok2 || !ok3 || !ok4 || low != next || high <= low || !slices.Contains(Names(), name) {
			return nil, false
		}
		rules = append(rules, Rule{name, low, high})
		next = high
	}
	if next != MaxBytes {
		return nil, false
	}
	return rules, true
}

// Names are the algorithms that a rule may have.
func Names() []string { return append(allreduce.Algorithms(), allreduce.AlgorithmRelay) }

// rulesOf lets names[i] hold up to cuts[i].
func rulesOf(names []string, cuts []int64) (rules Rules) {
	cuts = append(slices.Sorted(slices.Values(cuts)), MaxBytes)
	from := int64(0)
	for i, to := range cuts {
		rules = append(rules, Rule{names[i], from, to})
		from = to
	}
	return rules
}

func parseBytes(text string) (int64, bool) {
	if text == "max" {
		return MaxBytes, true
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

// FormatBytes is a size as Parse reads it.
func FormatBytes(n int64) string {
	switch {
	case n == MaxBytes:
		return "max"
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + "M"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.FormatInt(n>>10, 10) + "K"
	}
	return strconv.FormatInt(n, 10)
}
