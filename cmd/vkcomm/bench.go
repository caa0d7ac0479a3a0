package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/plugin/choice"
	"ggmlvkcomm/semaphores"
	"ggmlvkcomm/vkimpl"
)

// size is a number of bytes: 65536, 64K, 64M, 1G (2^10, 2^20, 2^30).
type size int64

// UnmarshalText parses it.
func (s *size) UnmarshalText(text []byte) error {
	digits, shift := strings.ToUpper(string(text)), 0
	if i := strings.IndexAny(digits, "KMG"); i >= 0 && i == len(digits)-1 {
		shift = 10 * (1 + strings.IndexByte("KMG", digits[i]))
		digits = digits[:i]
	}
	n, err := strconv.ParseInt(digits, 10, 32+10)
	if err != nil || n < 0 || n<<shift > 1<<36 {
		return fmt.Errorf("%q is not a size in bytes, as 4096, 4K, 64M", text)
	}
	*s = size(n << shift)
	return nil
}

func sizeText(n int64) string {
	for i, unit := range []string{"G", "M", "K"} {
		if shift := 30 - 10*i; n >= 1<<shift && n%(1<<shift) == 0 {
			return strconv.FormatInt(n>>shift, 10) + unit
		}
	}
	return strconv.FormatInt(n, 10)
}

// benchCmd has nccl-tests' letters where there is such a one.
type benchCmd struct {
	Min    size `short:"b" name:"minbytes" default:"4K" help:"Least size of a tensor."`
	Max    size `short:"e" name:"maxbytes" default:"16M" help:"Largest size."`
	Factor int  `short:"f" name:"stepfactor" default:"4" help:"Each size is the former times this."`
	Step   size `short:"i" name:"stepbytes" placeholder:"BYTES" help:"Each size is the former plus this, instead of -f."`
	GPUs   int  `short:"g" name:"ngpus" placeholder:"N" help:"The first N GPUs."`
	placement
	Iterations int      `short:"n" name:"iters" default:"20" help:"Timed iterations."`
	Warmup     int      `short:"w" name:"warmup-iters" default:"3" help:"Iterations that are not timed."`
	Aggregate  int      `short:"m" name:"agg-iters" default:"4" help:"Reductions queued back to back in an iteration, whose time is divided by it."`
	Check      int      `short:"c" name:"check" default:"1" help:"So many reductions of each row have every element of every rank compared; 0: none."`
	Stats      bool     `short:"I" name:"iteration-stats" help:"Also the mean and the coefficient of variation; in JSON every iteration."`
	Algo       []string `placeholder:"NAME" help:"Algorithms: singleshot, pipeline, twoshot, ring, relay (default: all)."`
	Wire       []string `default:"f32" placeholder:"NAME" help:"Wires: f32, f16, bf16."`
	Ordering   string   `enum:"auto,native,proxy" default:"auto" help:"Ordering between devices: auto, native, proxy."`
	StagingMB  int      `name:"staging-mb" default:"16" help:"Host memory of a rank, 1 to 1024 MiB."`
	P2P        bool     `name:"p2p" help:"Staging in VRAM that the peers import, where they can."`
	MinBusbw   float64  `name:"min-busbw" placeholder:"GB/S" help:"Fail when the average bus bandwidth is lower."`
	Timeline   bool     `help:"When the parts of one reduction of each row ran on the ranks' queues (on standard error but for text; and in JSON)."`
	References bool     `default:"true" negatable:"" help:"Rows for the raw link and for llama.cpp's own reduction, emulated."`
	Output     string   `short:"o" enum:"text,md,csv,json,jsonl" default:"text" help:"What is printed: text, md, csv, json, jsonl."`
	JSON       string   `short:"J" name:"json" placeholder:"FILE" help:"Also write JSON to a new file; where FILE exists, to FILE.1, FILE.2 ..."`
}

// Help is the long text of vkcomm bench --help.
func (*benchCmd) Help() string {
	return `Sums are in place and in float32, as llama.cpp's are. Times are of one reduction among -m that are queued back to
back; algbw and busbw are of the median, in GB/s (10^9): busbw = algbw x 2(n-1)/n. "butterfly" is what llama.cpp does
without the plugin, emulated by host-synchronised copies; "link-write" and "link-read" move the tensor between a
device and host memory, all ranks at once.

Exit status: 1 with a wrong element, below --min-busbw, or on any failure; 2 for wrong arguments.

Examples:
  vkcomm bench -b 4K -e 64M -f 4 -g 2 -J result.json
  vkcomm bench --ranks 4 --algo twoshot,ring --wire f32,f16 -o md
  vkcomm bench -b 16K -e 16K -n 1000 -m 1 -I --algo relay --min-busbw 0.5`
}

// Validate checks what kong does not.
func (c *benchCmd) Validate() error {
	switch {
	case c.Min < 4 || c.Max < c.Min:
		return fmt.Errorf("sizes from %d to %d bytes, need at least 4 and -b not above -e", c.Min, c.Max)
	case c.Step == 0 && c.Factor < 2:
		return fmt.Errorf("-f is %d, need at least 2", c.Factor)
	case c.Iterations < 1 || c.Warmup < 0 || c.Aggregate < 1 || c.Check < 0:
		return fmt.Errorf("-n and -m need at least 1, -w and -c at least 0")
	case c.StagingMB < 1 || c.StagingMB > 1024:
		return fmt.Errorf("--staging-mb is %d, accepted: 1 to 1024", c.StagingMB)
	case c.Ranks != 0 && (c.Ranks < 2 || c.Ranks > allreduce.MaxWorld):
		return fmt.Errorf("--ranks is %d, accepted: 2 to %d", c.Ranks, allreduce.MaxWorld)
	}
	for _, name := range c.Algo {
		if !slices.Contains(choice.Names(), name) {
			return fmt.Errorf("--algo %s: accepted are %s", name, strings.Join(choice.Names(), ", "))
		}
	}
	_, err := c.wires()
	return err
}

func (c *benchCmd) wires() (wires []allreduce.Wire, err error) {
	all := []allreduce.Wire{allreduce.F32, allreduce.F16, allreduce.BF16}
	for _, name := range c.Wire {
		i := slices.IndexFunc(all, func(w allreduce.Wire) bool { return w.String() == name })
		if i < 0 {
			return nil, fmt.Errorf("--wire %s: accepted are f32, f16, bf16", name)
		}
		wires = append(wires, all[i])
	}
	return wires, nil
}

// sizes in whole elements, ascending.
func (c *benchCmd) sizes() (list []int64) {
	for n := c.Min; n <= c.Max; {
		list = append(list, int64(n)/4*4)
		if c.Step > 0 {
			n += c.Step
		} else {
			n *= size(c.Factor)
		}
	}
	return list
}

func (c *benchCmd) preference() semaphores.Preference {
	return map[string]semaphores.Preference{"auto": semaphores.Auto, "native": semaphores.ForbidProxy, "proxy": semaphores.ForceProxy}[c.Ordering]
}

// Names of the rows that are no AllReduce of ours.
const (
	rowButterfly = "butterfly"
	rowWrite     = "link-write"
	rowRead      = "link-read"
)

// Run measures and prints.
func (c *benchCmd) Run(o *output) error {
	b, err := c.open()
	if err != nil {
		return err
	}
	// After an error nothing is freed: a queue may still use it, and the process ends.
	if err := b.openRigs(); err != nil {
		return err
	}
	var file *os.File
	if c.JSON != "" {
		if file, err = createNew(c.JSON); err != nil {
			return err
		}
		defer file.Close()
	}
	p := newPrinter(c.Output, o, c.Stats)
	p.begin(&b.report)
	err = b.rows(p)
	b.report.finish(err)
	p.end(&b.report)
	if file != nil {
		if werr := writeJSON(file, &b.report); werr != nil {
			return werr
		}
	}
	if err != nil {
		return err
	}
	b.ours.close()
	if b.reference != nil {
		b.reference.close()
	}
	b.s.Close()
	return b.verdict()
}

// bench is one run.
type bench struct {
	*benchCmd
	s         *vkimpl.Standalone
	ours      *rig // as a communicator has it
	reference *rig // with staging for whole tensors
	report    report
}

// referenceLimit bounds the staging of the reference rows.
const referenceLimit = 256 << 20

func (c *benchCmd) open() (*bench, error) {
	probe, err := vkimpl.OpenStandalone(nil, vkimpl.StandaloneOptions{})
	if err != nil {
		return nil, err
	}
	physical, err := c.ranks(probe.Physical, c.GPUs)
	probe.Close()
	if err != nil {
		return nil, &exitError{exitUsage, "bench: " + err.Error()}
	}
	if n := len(physical); n < 2 || n > allreduce.MaxWorld {
		return nil, &exitError{exitUsage, fmt.Sprintf("bench: %d rank, need 2 to %d: --ranks 2 puts two on one device", n, allreduce.MaxWorld)}
	}
	b := &bench{benchCmd: c}
	if b.s, err = vkimpl.OpenStandalone(physical, vkimpl.StandaloneOptions{}); err != nil {
		return nil, err
	}
	b.report = newReport(c, b.s, physical)
	return b, nil
}

func (b *bench) openRigs() (err error) {
	sizes := b.sizes()
	largest := sizes[len(sizes)-1]
	if b.ours, err = openRig(b.s, b.s.Adopted, int64(b.StagingMB)<<20, largest, b.preference()); err != nil {
		return err
	}
	if b.algorithms()[len(b.algorithms())-1] == allreduce.AlgorithmRelay {
		b.ours.openRelay()
	}
	b.report.Config.Ordering = string(b.ours.ranks.Kind())
	if b.P2P {
		moved, refused := b.ours.openP2P()
		b.report.Config.Staging = moved
		b.note("not peer-to-peer: %s", strings.Join(refused, "; "))
	}
	b.note("native ordering is not used: %s", b.ours.why)
	b.note("no relay: %s", b.ours.noRelay)
	if b.References {
		b.reference, err = openRig(b.s, b.s.Adopted, min(max(largest, 1<<20), referenceLimit), largest, b.preference())
	}
	return err
}

func (b *bench) note(format, text string) {
	if text != "" {
		b.report.Notes = append(b.report.Notes, fmt.Sprintf(format, text))
	}
}

// algorithms in the order of rows; the relay, if any, comes last.
func (b *bench) algorithms() []string {
	if b.Algo == nil {
		return choice.Names()
	}
	var names []string
	for _, name := range choice.Names() {
		if slices.Contains(b.Algo, name) {
			names = append(names, name)
		}
	}
	return names
}

func (b *bench) rows(p printer) error {
	wires, _ := b.wires()
	for _, bytes := range b.sizes() {
		for _, algorithm := range b.algorithms() {
			for _, wire := range wires {
				if algorithm == allreduce.AlgorithmRelay && (!b.ours.ranks.HasRelay() || wire != allreduce.F32 || bytes > choice.RelayBytes) {
					continue
				}
				w, err := b.ours.reduction(algorithm, wire, bytes, 0)
				if err != nil {
					b.note("%s", fmt.Sprintf("%s over %v is left out at %s: %v", algorithm, wire, sizeText(bytes), err))
					continue
				}
				if err := b.row(p, b.ours, w, row{Size: bytes, Algorithm: algorithm, Wire: wire.String(), Ordering: string(b.ours.ranks.Kind())}); err != nil {
					return err
				}
			}
		}
		if err := b.references(p, bytes); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) references(p printer, bytes int64) error {
	if b.reference == nil || bytes > b.reference.stagingBytes() {
		return nil
	}
	for _, name := range []string{rowButterfly, rowWrite, rowRead} {
		var w work
		var err error
		r := row{Size: bytes, Algorithm: name, Wire: allreduce.F32.String(), Ordering: "none"}
		switch name {
		case rowButterfly:
			w, err = b.reference.butterfly(bytes)
			r.Ordering = "host"
		default:
			w, err = b.reference.link(bytes, name == rowWrite)
		}
		if err != nil {
			return err
		}
		if err := b.row(p, b.reference, w, r); err != nil {
			return err
		}
	}
	return nil
}

// row checks, times and prints one line.
func (b *bench) row(p printer, g *rig, w work, r row) error {
	fail := func(err error) error {
		return fmt.Errorf("%s over %s, %s: %w", r.Algorithm, r.Wire, sizeText(r.Size), err)
	}
	r.Count, r.Type = r.Size/4, "float"
	p.progress(&r)
	if b.Check > 0 && !r.isLink() {
		r.Wrong = new(int64)
	}
	check := func(round int) error { // half of the checks before the timed iterations, half after
		wrong, err := g.check(w, r.Count, round)
		*r.Wrong += wrong
		return err
	}
	for i := 0; r.Wrong != nil && i < (b.Check+1)/2; i++ {
		if err := check(i); err != nil {
			return fail(err)
		}
	}
	if err := g.clear(r.Count); err != nil {
		return fail(err)
	}
	seconds, err := g.measure(w, b.Warmup, b.Iterations, b.Aggregate)
	if err != nil {
		return fail(err)
	}
	for i := (b.Check + 1) / 2; r.Wrong != nil && i < b.Check; i++ {
		if err := check(i); err != nil {
			return fail(err)
		}
	}
	w.close()
	if ours, ok := w.(*reduction); ok && b.Timeline {
		if r.Timeline, err = g.timeline(ours, b.Aggregate); err != nil {
			return fail(err)
		}
	}
	r.time(seconds, g.world, b.Stats)
	b.report.Rows = append(b.report.Rows, r)
	p.row(&r)
	return nil
}

// verdict is the exit status.
func (b *bench) verdict() error {
	switch r := &b.report; {
	case r.OutOfBounds > 0:
		return fmt.Errorf("bench: %d wrong elements", r.OutOfBounds)
	case len(r.ours()) == 0:
		return fmt.Errorf("bench: nothing was measured: %s", strings.Join(r.Notes, "; "))
	case r.AvgBusbw < b.MinBusbw:
		return fmt.Errorf("bench: average bus bandwidth is %.3f GB/s, at least %g was asked for", r.AvgBusbw, b.MinBusbw)
	}
	return nil
}
