package allreduce

import "slices"

// ordering knows which timeline values each queue comes after already, so that
// a builder can state every dependency and emit only the waits that add one.
type ordering struct {
	// queues[q][t] is the value of timeline t that the next batch of queue q
	// comes after. Queues and their timelines share an index.
	queues [][]int64
	// implied[p] is what holds when p is reached.
	implied map[Point][]int64
}

func newOrdering(world int) *ordering {
	o := &ordering{queues: make([][]int64, 2*world), implied: map[Point][]int64{}}
	for q := range o.queues {
		o.queues[q] = make([]int64, 2*world)
	}
	return o
}

// line is the index of a queue, and of its timeline, among those of all ranks.
func line(rank int, queue Queue) int { return 2*rank + int(queue) }

// needed is b's waits without those that its queue or another wait implies.
func (o *ordering) needed(b Batch) []Wait {
	waits := b.Waits
	queue := o.queues[line(b.Rank, b.Queue)]
	implied := make([][]int64, len(waits))
	for i, w := range waits {
		implied[i] = o.implied[w.Point]
	}
	var kept []Wait
	for i, w := range waits {
		at := line(w.Rank, w.Queue)
		drop := queue[at] >= w.Value
		for k := 0; k < len(waits) && !drop; k++ {
			// Of two waits for one point the first is kept.
			drop = k != i && implied[k][at] >= w.Value && (waits[k].Point != w.Point || k < i)
		}
		if !drop {
			kept = append(kept, w)
		}
	}
	return kept
}

// submitted notes a batch with its waits, and p if p has a value.
func (o *ordering) submitted(b Batch, p Point) {
	at := line(b.Rank, b.Queue)
	queue := o.queues[at]
	for _, w := range b.Waits {
		for t, v := range o.implied[w.Point] {
			queue[t] = max(queue[t], v)
		}
	}
	if p.Value > 0 {
		queue[at] = p.Value
		o.implied[p] = slices.Clone(queue)
	}
}
