package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// printer writes a run of bench in one of the formats. Where results alone may
// be on standard output, the rest goes to standard error.
type printer interface {
	begin(r *report)
	progress(r *row)
	row(r *row)
	end(r *report)
}

func newPrinter(format string, o *output, stats bool) printer {
	t := textPrinter{o: o, stats: stats, terminal: isTerminal(o.err) && format != "text"}
	switch format {
	case "md":
		return &mdPrinter{t}
	case "csv":
		return &csvPrinter{t, csv.NewWriter(o.out)}
	case "json", "jsonl":
		return &jsonPrinter{t, format == "jsonl"}
	}
	return &t
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// textPrinter has nccl-tests' grammar: '#' begins every line that is not data.
type textPrinter struct {
	o        *output
	stats    bool
	terminal bool // standard error is one, and rows are not their own progress
}

func (t *textPrinter) begin(r *report) {
	t.header(t.o.out, r)
	w := t.o.out
	more := ""
	if t.stats {
		more = fmt.Sprintf(" %9s %6s", "mean", "cv")
	}
	fmt.Fprintf(w, "#\n#%11s %11s %6s %11s %5s %9s %9s %9s %9s %7s %7s %7s%s\n", "size", "count", "type", "algorithm", "wire", "ordering",
		"min", "p50", "p99", "algbw", "busbw", "#wrong", more)
	if t.stats {
		more = fmt.Sprintf(" %9s %6s", "(us)", "(%)")
	}
	fmt.Fprintf(w, "#%11s %11s %6s %11s %5s %9s %9s %9s %9s %7s %7s %7s%s\n", "(B)", "(elements)", "", "", "", "",
		"(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "", more)
}

// header says what runs where.
func (t *textPrinter) header(w io.Writer, r *report) {
	c := r.Config
	fmt.Fprintf(w, "# vkcomm %s (%s) AllReduce, sum in place\n", r.Version, r.Commit)
	fmt.Fprintf(w, "# args: %s\n", strings.Join(r.Args, " "))
	fmt.Fprintf(w, "# worldSize %d ordering %s staging %d MiB iters %d warmup %d aggregate %d check %d\n",
		c.WorldSize, c.Ordering, c.StagingMB, c.Iters, c.Warmup, c.Aggregate, c.Check)
	fmt.Fprintf(w, "#\n# Using devices\n")
	for _, d := range r.Ranks {
		fmt.Fprintf(w, "#  Rank %2d device %2d [%s] %s (%s)\n", d.Rank, d.Device, orNone(d.PCI), d.Name, d.Driver)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "# Note: %s\n", n)
	}
}

func orNone(s string) string {
	if s == "" {
		return "no PCI id"
	}
	return s
}

func (t *textPrinter) progress(r *row) {
	if t.terminal {
		fmt.Fprintf(t.o.err, "\r\x1b[K%s %s %s", sizeText(r.Size), r.Algorithm, r.Wire)
	}
}

func (t *textPrinter) wipe() {
	if t.terminal {
		fmt.Fprint(t.o.err, "\r\x1b[K")
	}
}

func (t *textPrinter) row(r *row) {
	more := ""
	if t.stats {
		more = fmt.Sprintf(" %9s %6s", fixed(r.AvgUs, 9), fixed(100*r.CV, 6))
	}
	fmt.Fprintf(t.o.out, "%12d %11d %6s %11s %5s %9s %9s %9s %9s %7s %7s %7s%s\n", r.Size, r.Count, r.Type, r.Algorithm, r.Wire, r.Ordering,
		fixed(r.MinUs, 9), fixed(r.P50Us, 9), fixed(r.P99Us, 9), fixed(r.Algbw, 7), fixed(r.Busbw, 7), wrongText(r), more)
	r.Timeline.print(t.o.out)
}

func (t *textPrinter) end(r *report) { t.footer(t.o.out, r) }

func (t *textPrinter) footer(w io.Writer, r *report) {
	verdict := "OK"
	if r.OutOfBounds > 0 {
		verdict = "FAILED"
	}
	if r.Error != "" {
		fmt.Fprintf(w, "# Error: %s\n", r.Error)
	}
	fmt.Fprintf(w, "# Out of bounds values : %d %s\n# Avg bus bandwidth    : %.6g\n", r.OutOfBounds, verdict, r.AvgBusbw)
}

// fixed gives a number as many decimals, 2 at most, as leave it within width.
func fixed(v float64, width int) string {
	for decimals := 3; decimals > 0; decimals-- {
		if s := strconv.FormatFloat(v, 'f', decimals, 64); len(s) <= width-2 {
			return s
		}
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

func wrongText(r *row) string {
	if r.Wrong == nil {
		return "N/A"
	}
	return strconv.FormatInt(*r.Wrong, 10)
}

// columns of md and csv.
var columns = []string{"size", "count", "type", "algorithm", "wire", "ordering", "min_us", "p50_us", "p99_us", "algbw", "busbw", "wrong"}

func fields(r *row, number func(v float64) string) []string {
	return []string{strconv.FormatInt(r.Size, 10), strconv.FormatInt(r.Count, 10), r.Type, r.Algorithm, r.Wire, r.Ordering,
		number(r.MinUs), number(r.P50Us), number(r.P99Us), number(r.Algbw), number(r.Busbw), wrongText(r)}
}

func (t *textPrinter) statColumns(names ...string) []string {
	if !t.stats {
		return nil
	}
	return names
}

// mdPrinter writes a Markdown table.
type mdPrinter struct{ textPrinter }

func (m *mdPrinter) begin(r *report) {
	m.header(m.o.err, r)
	names := slices.Concat(columns, m.statColumns("avg_us", "cv"))
	fmt.Fprintf(m.o.out, "| %s |\n|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
}

func (m *mdPrinter) row(r *row) {
	m.wipe()
	r.Timeline.print(m.o.err)
	number := func(v float64) string { return fixed(v, 9) }
	fmt.Fprintf(m.o.out, "| %s |\n", strings.Join(slices.Concat(fields(r, number), m.statColumns(number(r.AvgUs), number(r.CV))), " | "))
}

func (m *mdPrinter) end(r *report) { m.footer(m.o.err, r) }

// csvPrinter writes a line of names and then one a row.
type csvPrinter struct {
	textPrinter
	w *csv.Writer
}

func (c *csvPrinter) begin(r *report) {
	c.header(c.o.err, r)
	c.write(slices.Concat(columns, c.statColumns("avg_us", "cv")))
}

func (c *csvPrinter) row(r *row) {
	c.wipe()
	r.Timeline.print(c.o.err)
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
	c.write(slices.Concat(fields(r, number), c.statColumns(number(r.AvgUs), number(r.CV))))
}

func (c *csvPrinter) write(record []string) {
	_ = c.w.Write(record) // a broken pipe is of no interest after the measurement
	c.w.Flush()
}

func (c *csvPrinter) end(r *report) { c.footer(c.o.err, r) }

// jsonPrinter writes the report as one object at the end; or, as lines, the
// report without rows first, each row when it is measured, and the report
// without rows again.
type jsonPrinter struct {
	textPrinter
	lines bool
}

func (j *jsonPrinter) begin(r *report) {
	j.header(j.o.err, r)
	j.line("begin", r)
}

func (j *jsonPrinter) row(r *row) {
	j.wipe()
	r.Timeline.print(j.o.err)
	if j.lines {
		_ = json.NewEncoder(j.o.out).Encode(struct {
			Kind string `json:"kind"`
			*row
		}{"row", r})
	}
}

func (j *jsonPrinter) end(r *report) {
	if !j.lines {
		_ = writeJSON(j.o.out, r)
	}
	j.line("end", r)
	j.footer(j.o.err, r)
}

func (j *jsonPrinter) line(kind string, r *report) {
	if j.lines {
		_ = json.NewEncoder(j.o.out).Encode(struct {
			Kind string `json:"kind"`
			*report
			Rows []row `json:"rows,omitempty"`
		}{kind, r, nil})
	}
}
