package plugin

import (
	"fmt"
	"runtime"
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
	// steady marks the latest recording: what Go had allocated by then, and
	// how many calls there had been.
	steady struct{ mallocs, calls uint64 }
	// parts of graphs between reductions, and how long llama.cpp recorded them.
	parts       uint64
	partSeconds float64
}

// mallocs is how many heap objects this process's Go side ever allocated.
func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// recorded notes that a program was recorded, for the reduction that comes.
func (s *stats) recorded() {
	s.steady.mallocs, s.steady.calls = mallocs(), s.calls+1
}

func (s *stats) count(schedule *allreduce.Schedule) {
	s.calls++
	s.bytes += 4 * uint64(schedule.Elements)
	s.rounds += uint64(schedule.Rounds)
	s.largest = max(s.largest, 4*schedule.Elements)
}

// log writes the summary of GGML_VK_COMM_STATS.
func (s *stats) log(c *Comm) {
	allocated := mallocs() - s.steady.mallocs
	logf(levelInfo, "stats: %d reductions, %d bytes a rank (largest %d), %s over %s ordering, %d rounds, %d recordings",
		s.calls, s.bytes, s.largest, &c.choose, c.ranks.Kind(), s.rounds, c.plans.misses)
	logf(levelInfo, "stats: %d heap objects allocated in the %d reductions since the last recording", allocated, s.calls-s.steady.calls)
	if s.parts > 0 {
		logf(levelInfo, "stats: %d parts of graphs between reductions, recorded in %.1f us each", s.parts, 1e6*s.partSeconds/float64(s.parts))
	}
	if c.ranks.HasRelay() {
		logf(levelInfo, "stats: the relay's threads used %.0f ms of CPU time since the start", 1e3*c.ranks.RelayCPUSeconds())
	}
	if c.config.P2P {
		logf(levelInfo, "stats: staging in %s; memory %s", c.stagingText(), c.p2p.kernel)
	}
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
