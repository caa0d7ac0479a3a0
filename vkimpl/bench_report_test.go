package vkimpl

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"ggmlvkcomm/allreduce"
)

// benchRow is a line of the AllReduce table and of the JSON file. Times are in
// microseconds, rates in GB/s.
type benchRow struct {
	Type         string    `json:"type"`
	Ordering     string    `json:"ordering"`
	Algorithm    string    `json:"algorithm"`
	Wire         string    `json:"wire"`
	WorldSize    int       `json:"worldSize"`
	Bytes        int64     `json:"bytes"`
	ChunkBytes   int64     `json:"chunkBytes"`
	Iterations   int       `json:"iterations"`
	Us           float64   `json:"us"`
	AllUs        []float64 `json:"allUs"`
	SubmitUs     float64   `json:"submitUs"` // the calling thread's part
	Algbw        float64   `json:"algbw"`
	Busbw        float64   `json:"busbw"`
	Link         float64   `json:"link"`
	BusOverLink  float64   `json:"busOverLink"`
	Busy         float64   `json:"busy"` // share of the time that the busier direction needs at the link rate
	PredictedUs  float64   `json:"predictedUs"`
	PredictedHop float64   `json:"predictedHopUs"` // with the hop as latency
}

func (g *benchRig) row(c *benchCase, link float64, model *costModel) benchRow {
	s := c.programs[0].Schedule
	t := c.time.median()
	r := benchRow{Type: "allreduce", Ordering: c.order, Algorithm: c.algorithm, Wire: c.wire.String(), WorldSize: g.world,
		Bytes: c.bytes, ChunkBytes: c.chunk, Iterations: c.time.iterations,
		Us: 1e6 * t, SubmitUs: 1e6 * median(c.time.submits), Algbw: gigabytes(c.bytes, t), Link: link}
	for _, seconds := range c.time.seconds {
		r.AllUs = append(r.AllUs, 1e6*seconds)
	}
	r.Busbw = r.Algbw * g.busFactor()
	r.BusOverLink = r.Busbw / link
	for rank := range g.world {
		written, read := s.HostBytes(rank)
		r.Busy = max(r.Busy, gigabytes(max(written, read), t)/link)
	}
	fitted, hop := model.predict(s)
	r.PredictedUs, r.PredictedHop = 1e6*fitted, 1e6*hop
	g.emit(r)
	return r
}

// report prints the table of all rows.
func (g *benchRig) report(link float64) {
	fmt.Printf("\n# AllReduce, %d ranks; us: per reduction, back to back; submit: of it the calling thread;\n"+
		"# algbw, busbw in GB/s; bus/link: busbw over the link rate of %.2f GB/s, which a 16-bit wire may exceed;\n"+
		"# busy: share of the time that the bytes of the busier direction need at that rate;\n"+
		"# model: predicted us for one reduction by itself; hop: the same with the measured hop as latency\n", g.world, link)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "order\talgorithm\twire\tsize\tus\tsubmit\talgbw\tbusbw\tbus/link\tbusy\tmodel\thop\t")
	for _, r := range g.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.1f\t%.1f\t%.3f\t%.3f\t%.0f%%\t%.0f%%\t%s\t%s\t\n", r.Ordering, r.Algorithm, r.Wire, sizeText(r.Bytes),
			r.Us, r.SubmitUs, r.Algbw, r.Busbw, 100*r.BusOverLink, 100*r.Busy, knownUs(r.PredictedUs), knownUs(r.PredictedHop))
	}
	w.Flush()
}

func knownUs(us float64) string {
	if us == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", us)
}

func sizeText(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%dM", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%dK", n>>10)
	}
	return fmt.Sprint(n)
}

// report prints the link table.
func (l *linkRig) report() {
	fmt.Printf("\n# Link: GB/s in each direction of each rank, %s a transfer", sizeText(l.bytes))
	if rate := l.rate(); rate > 0 {
		fmt.Printf("; link rate %.2f", rate)
	}
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "rank\tby\tdirection\tGB/s\t")
	for _, m := range l.moved {
		if len(m.time.seconds) == 0 {
			continue
		}
		rank := "all"
		if m.rank >= 0 {
			rank = fmt.Sprint(m.rank)
		}
		rate := gigabytes(l.bytes, m.time.median())
		fmt.Fprintf(w, "%s\t%s\t%s\t%.2f\t\n", rank, m.by, m.dir, rate)
		l.emit(map[string]any{"type": "link", "rank": rank, "by": m.by, "direction": m.dir, "bytes": l.bytes, "GBps": rate})
	}
	w.Flush()
}

// reportModels prints what the model was given, and from which size on it finds
// another algorithm the fastest, also for worlds larger than this machine.
func (g *benchRig) reportModels() {
	worlds := []int{2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}
	if testing.Short() {
		worlds = []int{2, 4, 16}
	}
	var elements []int64
	for bytes := int64(4 << 10); bytes <= 64<<20; bytes *= 2 {
		elements = append(elements, bytes/4)
	}
	chunk := int64(1 << 20)
	if g.settings.chunk > 0 {
		chunk = g.settings.chunk
	}
	for _, m := range g.models {
		fmt.Println()
		for rank, l := range m.links {
			fmt.Printf("# Model, %s ordering, rank %d: latency %.1f us (hop %.1f), write %.2f, read %.2f, device %.2f GB/s\n",
				m.order, rank, 1e6*l.Latency, 1e6*m.hop, l.Write/1e9, l.Read/1e9, l.Device/1e9)
			g.emit(map[string]any{"type": "model", "ordering": m.order, "rank": rank, "latencyUs": 1e6 * l.Latency, "hopUs": 1e6 * m.hop,
				"write": l.Write / 1e9, "read": l.Read / 1e9, "device": l.Device / 1e9})
		}
		link := m.links[0]
		link.Latency = m.hop
		base := allreduce.Params{HalfBytes: max(g.ranks.HalfBytes(), 8<<20), ChunkBytes: chunk, TransferQueue: g.ranks.TransferQueues()}
		fmt.Printf("# predicted fastest from a size on, f32, ranks like rank 0, hop as latency, chunks of %s:\n", sizeText(chunk))
		line := map[int][]string{}
		for _, x := range allreduce.Crossovers(link, base, worlds, elements) {
			line[x.World] = append(line[x.World], fmt.Sprintf("%s %s (%.0f us)", sizeText(4*x.Elements), x.Algorithm, 1e6*x.Seconds))
			g.emit(map[string]any{"type": "crossover", "ordering": m.order, "worldSize": x.World, "bytes": 4 * x.Elements,
				"algorithm": x.Algorithm, "us": 1e6 * x.Seconds})
		}
		for _, n := range worlds {
			fmt.Printf("  n=%-2d  %s\n", n, strings.Join(line[n], ", "))
		}
	}
}

// describe notes what a benchmark runs on.
func (g *benchRig) describe(what string) {
	var devices []map[string]string
	for rank, index := range g.physical {
		d := g.s.Physical[index]
		fmt.Printf("# %s: rank %d on device %d: %s (%s, %s, Vulkan %s)\n", what, rank, index, d.Name, d.Driver, d.Kind, d.API)
		devices = append(devices, map[string]string{"name": d.Name, "driver": d.Driver, "kind": d.Kind, "uuid": fmt.Sprintf("%x", d.DeviceUUID)})
	}
	g.emit(map[string]any{"type": "run", "benchmark": what, "date": time.Now().UTC().Format(time.RFC3339), "go": runtime.Version(),
		"devices": devices, "stagingBytes": g.settings.staging})
}

// emit appends a line to the JSON file, if one is asked for.
func (g *benchRig) emit(v any) {
	if g.settings.json == "" {
		return
	}
	line, err := json.Marshal(v)
	must(g.b, err)
	f, err := os.OpenFile(g.settings.json, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(g.b, err)
	_, err = f.Write(append(line, '\n'))
	must(g.b, err)
	must(g.b, f.Close())
}
