package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/vkimpl"
)

// timeline says when the parts of one reduction ran on the ranks' queues, in
// microseconds from the beginning of the first one. It is the last one of those
// that were queued back to back.
type timeline struct {
	SubmitUs    float64    `json:"submitUs"`    // when the host began to submit it, before that
	SubmittedUs float64    `json:"submittedUs"` // when the host had submitted it
	Batches     []spanInfo `json:"batches"`
}

type spanInfo struct {
	Rank    int     `json:"rank"`
	Queue   string  `json:"queue"`
	Batch   int     `json:"batch"`
	Steps   string  `json:"steps"`
	BeginUs float64 `json:"beginUs"`
	EndUs   float64 `json:"endUs"`
}

// timeline records a reduction again, with stamps, and runs it as it was measured.
func (g *rig) timeline(measured *reduction, aggregate int) (*timeline, error) {
	g.ranks.SetTrace(true)
	r, err := g.reduction(measured.algorithm, measured.wire, measured.bytes, 0)
	g.ranks.SetTrace(false)
	if err != nil {
		return nil, err
	}
	defer r.close()
	var from, to time.Duration
	var last *vkimpl.Program
	for range 2 * aggregate { // the first ones build kernels
		last, from = r.programs[g.half], monotonic()
		if err := r.submit(g); err != nil {
			return nil, err
		}
		to = monotonic()
	}
	if err := g.drain(); err != nil {
		return nil, err
	}
	spans, err := last.Spans()
	if err != nil {
		return nil, err
	}
	return newTimeline(last.Schedule, spans, from, to), nil
}

// monotonic is CLOCK_MONOTONIC, which device clocks are related to.
func monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail
	return time.Duration(t.Nano())
}

func newTimeline(s *allreduce.Schedule, spans []vkimpl.Span, from, to time.Duration) *timeline {
	if len(spans) == 0 {
		return &timeline{}
	}
	slices.SortStableFunc(spans, func(a, b vkimpl.Span) int { return int(a.Begin - b.Begin) })
	start := spans[0].Begin
	us := func(t time.Duration) float64 { return float64(t-start) / 1e3 }
	t := &timeline{SubmitUs: us(from), SubmittedUs: us(to)}
	for _, p := range spans {
		t.Batches = append(t.Batches, spanInfo{p.Rank, p.Queue.String(), p.Batch, stepsText(s, p.Batch), us(p.Begin), us(p.End)})
	}
	return t
}

// stepsText names what a batch does: "pack+reduce".
func stepsText(s *allreduce.Schedule, batch int) string {
	if s.Algorithm == allreduce.AlgorithmRelay {
		return s.Algorithm
	}
	var names []string
	for _, step := range s.Batches[batch].Steps {
		if name := step.Op.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

func (t *timeline) print(w io.Writer) {
	if t == nil {
		return
	}
	fmt.Fprintf(w, "#   submitted from %.1f to %.1f us\n", t.SubmitUs, t.SubmittedUs)
	for _, b := range t.Batches {
		fmt.Fprintf(w, "#   rank %2d %8s %9.1f - %9.1f us  %s\n", b.Rank, b.Queue, b.BeginUs, b.EndUs, b.Steps)
	}
}
