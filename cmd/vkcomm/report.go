package main

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"ggmlvkcomm/vkimpl"
)

// report is a run of bench, as JSON has it.
type report struct {
	Version     string            `json:"version"`
	Commit      string            `json:"commit"`
	Date        string            `json:"date"`
	Args        []string          `json:"args"`
	Env         map[string]string `json:"env"` // ours and ggml's own, nothing else
	Ranks       []rankInfo        `json:"ranks"`
	Config      configInfo        `json:"config"`
	Notes       []string          `json:"notes,omitempty"`
	Rows        []row             `json:"rows"`
	OutOfBounds int64             `json:"outOfBounds"`
	AvgBusbw    float64           `json:"avgBusbw"` // GB/s, over our own rows
	Error       string            `json:"error,omitempty"`
}

type rankInfo struct {
	Rank       int    `json:"rank"`
	Device     int    `json:"device"`
	Name       string `json:"name"`
	Driver     string `json:"driver"`
	DeviceUUID string `json:"deviceUUID"`
	PCI        string `json:"pci,omitempty"`
}

type configInfo struct {
	WorldSize int      `json:"worldSize"`
	Ordering  string   `json:"ordering"`
	StagingMB int      `json:"stagingMB"`
	Staging   []string `json:"staging,omitempty"` // by rank, with --p2p
	Iters     int      `json:"iters"`
	Warmup    int      `json:"warmup"`
	Aggregate int      `json:"aggregate"`
	Check     int      `json:"check"`
}

// row is a line of the table. Times are in microseconds, rates in GB/s (10^9).
type row struct {
	Size      int64     `json:"size"`
	Count     int64     `json:"count"`
	Type      string    `json:"type"`
	Algorithm string    `json:"algorithm"`
	Wire      string    `json:"wire"`
	Ordering  string    `json:"ordering"`
	MinUs     float64   `json:"minUs"`
	P50Us     float64   `json:"p50Us"`
	P99Us     float64   `json:"p99Us"`
	Algbw     float64   `json:"algbw"`
	Busbw     float64   `json:"busbw"`
	Wrong     *int64    `json:"wrong"` // null: not checked
	AvgUs     float64   `json:"avgUs,omitempty"`
	CV        float64   `json:"cv,omitempty"` // standard deviation over mean
	AllUs     []float64 `json:"allUs,omitempty"`
	Timeline  *timeline `json:"timeline,omitempty"`
}

func (r *row) isLink() bool { return r.Algorithm == rowWrite || r.Algorithm == rowRead }

// isOurs: a reduction of the plugin, no reference.
func (r *row) isOurs() bool { return !r.isLink() && r.Algorithm != rowButterfly }

// busFactor turns algbw into busbw: what a rank must send and receive at least,
// as a multiple of the tensor.
func busFactor(world int) float64 { return 2 * float64(world-1) / float64(world) }

// time fills in what the iterations took.
func (r *row) time(seconds []float64, world int, stats bool) {
	us := func(percent int) float64 { return 1e6 * percentile(seconds, percent) }
	r.MinUs, r.P50Us, r.P99Us = us(0), us(50), us(99)
	if r.P50Us > 0 {
		r.Algbw = float64(r.Size) / r.P50Us / 1e3
	}
	r.Busbw = r.Algbw
	if !r.isLink() {
		r.Busbw *= busFactor(world)
	}
	if !stats {
		return
	}
	var sum, squares float64
	for _, s := range seconds {
		r.AllUs = append(r.AllUs, 1e6*s)
		sum += 1e6 * s
	}
	r.AvgUs = sum / float64(len(seconds))
	for _, v := range r.AllUs {
		squares += (v - r.AvgUs) * (v - r.AvgUs)
	}
	if r.AvgUs > 0 {
		r.CV = math.Sqrt(squares/float64(len(seconds))) / r.AvgUs
	}
}

func newReport(c *benchCmd, s *vkimpl.Standalone, physical []int) report {
	r := report{Version: version, Commit: commit, Date: time.Now().UTC().Format(time.RFC3339), Args: os.Args[1:],
		Env: ownEnvironment(os.Environ()), Rows: []row{},
		Config: configInfo{WorldSize: len(physical), StagingMB: c.StagingMB, Iters: c.Iterations, Warmup: c.Warmup,
			Aggregate: c.Aggregate, Check: c.Check}}
	for rank, index := range physical {
		d := &s.Physical[index]
		r.Ranks = append(r.Ranks, rankInfo{rank, index, d.Name, d.Driver, hex.EncodeToString(d.DeviceUUID[:]), s.Survey(index).PCI})
	}
	return r
}

// ownEnvironment keeps what says how Vulkan and this plugin behave. The rest
// may hold secrets.
func ownEnvironment(env []string) map[string]string {
	own := map[string]string{}
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		for _, prefix := range []string{"GGML_VK_", "VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_INSTANCE_LAYERS", "VK_LOADER_", "VKCOMM_"} {
			if strings.HasPrefix(name, prefix) {
				own[name] = value
			}
		}
	}
	return own
}

// ours are the rows of the plugin.
func (r *report) ours() (rows []row) {
	for _, row := range r.Rows {
		if row.isOurs() {
			rows = append(rows, row)
		}
	}
	return rows
}

// finish sums up; err is what ended the run early, if anything.
func (r *report) finish(err error) {
	for _, row := range r.Rows {
		if row.Wrong != nil {
			r.OutOfBounds += *row.Wrong
		}
	}
	ours := r.ours()
	for _, row := range ours {
		r.AvgBusbw += row.Busbw / float64(len(ours))
	}
	if err != nil {
		r.Error = err.Error()
	}
}

func writeJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

// createNew makes a file that did not exist: path, or path.1, path.2 ...
func createNew(path string) (*os.File, error) {
	name := path
	for i := 1; ; i++ {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err == nil || !errors.Is(err, os.ErrExist) || i > 999 {
			return f, err
		}
		name = fmt.Sprintf("%s.%d", path, i)
	}
}
