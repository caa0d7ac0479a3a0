package plugin

import (
	"fmt"
	"sort"
	"strings"

	"ggmlvkcomm/allreduce"
)

// stats counts what a communicator did. Fixed size: counting allocates nothing.
type stats struct {
	calls   uint64
	bytes   uint64 // of one rank's tensors
	rounds  uint64
	largest int64
	refused [reasonCount]uint64
}

func (s *stats) count(schedule *allreduce.Schedule) {
	s.calls++
	s.bytes += 4 * uint64(schedule.Elements)
	s.rounds += uint64(schedule.Rounds)
	s.largest = max(s.largest, 4*schedule.Elements)
}

// log writes the summary of GGML_VK_COMM_STATS.
func (s *stats) log(c *Comm) {
	logf(levelInfo, "stats: %d reductions, %d bytes a rank (largest %d), %s over %s ordering, %d rounds, %d recordings",
		s.calls, s.bytes, s.largest, c.choose, c.ranks.Kind(), s.rounds, c.plans.misses)
	var lines []string
	for r, n := range s.refused {
		if n > 0 {
			lines = append(lines, fmt.Sprintf("%d x %s", n, textOf(r)))
		}
	}
	sort.Strings(lines)
	if len(lines) > 0 {
		logf(levelInfo, "stats: left to llama.cpp: %s", strings.Join(lines, ", "))
	}
}
