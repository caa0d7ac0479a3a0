package plugin

import (
	"fmt"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/plugin/choice"
	"ggmlvkcomm/vkimpl"
)

// selection is a communicator's choice: which algorithm and which wire type for
// a tensor of so many bytes.
type selection struct {
	rules choice.Rules
	wire  allreduce.Wire
	// wireFrom is the size from which wire is used; below it is F32.
	wireFrom int64
	source   string // where the rules come from, for the log
}

func (s *selection) algorithm(bytes int64) string { return s.rules.Algorithm(bytes) }

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
	return choice.ChunkBytes(algorithm, s.wireFor(bytes).Bytes(bytes/4), limit)
}

// transferQueues is the ranks whose copy queue writes for them.
func transferQueues(ranks *vkimpl.Ranks) uint64 {
	return choice.CopyQueues(ranks.TransferQueues(), ranks.Vendors())
}

// String describes the choice for the log, in the syntax of GGML_VK_COMM_ALGO.
func (s *selection) String() string {
	wire := "wire f32"
	if s.wire != allreduce.F32 {
		wire = fmt.Sprintf("wire %s from %s", s.wire, choice.FormatBytes(s.wireFrom))
	}
	return fmt.Sprintf("%s (%s), %s", s.rules, s.source, wire)
}

// usesWide reports whether any size goes over a 16-bit wire.
func (s *selection) usesWide() bool { return s.wire != allreduce.F32 }

// newSelection is the choice before calibration: what the environment forces,
// else the default.
func newSelection(c *Config, world int) (s selection, forced bool) {
	s = selection{rules: choice.Default(world), wire: c.Wire, wireFrom: choice.WireFrom, source: "default table"}
	if c.FP32 {
		s.wire = allreduce.F32
	}
	if c.Ring {
		s.rules, s.source = s.rules.WithLargest(allreduce.AlgorithmRing), "ring by environment"
	}
	if c.Algo != nil {
		s.rules, s.source = c.Algo, "set by environment"
		return s, true
	}
	return s, c.Ring
}

// wantsRelay reports whether a rule asks for it.
func (s *selection) wantsRelay() bool { return s.rules.Use(allreduce.AlgorithmRelay) }
