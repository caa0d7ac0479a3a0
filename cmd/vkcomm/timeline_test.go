package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/semaphores"
	"ggmlvkcomm/vkimpl"
)

// One batch runs once, on the queue that the schedule has it on, and not before
// what it waits for has ended: clocks of several devices put on one show that.
func TestTimelineKeepsTheSchedule(t *testing.T) {
	needVulkan(t)
	s, err := vkimpl.OpenStandalone([]int{0, 0, 0}, vkimpl.StandaloneOptions{})
	must(t, err)
	defer s.Close()
	const bytes = 512 << 10
	g, err := openRig(s, s.Adopted, 256<<10, bytes, semaphores.Auto)
	must(t, err)
	defer g.close()
	for _, algorithm := range allreduce.Algorithms() {
		g.ranks.SetTrace(true)
		r, err := g.reduction(algorithm, allreduce.F16, bytes, 0)
		g.ranks.SetTrace(false)
		must(t, err)
		p := r.programs[g.half]
		must(t, r.submit(g))
		must(t, g.drain())
		spans, err := p.Spans()
		must(t, err)
		r.close()
		ran := map[int]vkimpl.Span{}
		for _, span := range spans {
			b := p.Schedule.Batches[span.Batch]
			if span.Begin > span.End || span.Rank != b.Rank || span.Queue != b.Queue {
				t.Errorf("%s: %+v of %+v", algorithm, span, b)
			}
			ran[span.Batch] = span
		}
		if len(ran) != len(spans) {
			t.Errorf("%s: %d spans of %d batches", algorithm, len(spans), len(ran))
		}
		checkWaits(t, p.Schedule, ran)
	}
}

func checkWaits(t *testing.T, s *allreduce.Schedule, ran map[int]vkimpl.Span) {
	t.Helper()
	for i, b := range s.Batches {
		for _, w := range b.Waits {
			signals := func(other allreduce.Batch) bool {
				return other.Rank == w.Rank && other.Queue == w.Queue && other.Signal == w.Value
			}
			of := slices.IndexFunc(s.Batches, signals)
			before, after := ran[of], ran[i]
			if len(s.Batches[of].Steps) > 0 && len(b.Steps) > 0 && before.End > after.Begin {
				t.Errorf("%s: batch %d begins %v before batch %d ends, which it waits for", s.Algorithm, i, before.End-after.Begin, of)
			}
		}
	}
}

func TestBenchTimeline(t *testing.T) {
	needVulkan(t)
	status, out, errs := vkcomm(strings.Fields("bench --ranks 2 -b 4K -e 4K -n 1 -w 0 --timeline -o json --no-references --algo twoshot")...)
	var r report
	must(t, json.Unmarshal([]byte(out), &r))
	if status != 0 || len(r.Rows) != 1 || r.Rows[0].Timeline == nil {
		t.Fatalf("status %d: %s; %+v", status, errs, r.Rows)
	}
	line := r.Rows[0].Timeline
	var text bytes.Buffer
	line.print(&text)
	for _, steps := range []string{"pack", "reduce", "unpack"} {
		if !strings.Contains(text.String(), "us  "+steps+"\n") || !strings.Contains(errs, "us  "+steps+"\n") {
			t.Errorf("no %s in %q, %q", steps, text.String(), errs)
		}
	}
	if len(line.Batches) != 6 || line.Batches[0].BeginUs != 0 || line.SubmitUs > line.SubmittedUs {
		t.Errorf("%+v", line)
	}
}
