package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"ggmlvkcomm/semaphores"
	"ggmlvkcomm/vkimpl"
)

type doctorCmd struct {
	placement
	JSON  bool   `name:"json" help:"Print JSON."`
	Llama string `placeholder:"PATH" help:"Also check whether a llama.cpp build can be hooked: a program, or the directory with its libraries."`
	Lib   string `placeholder:"PATH" help:"The shim, or the directory that has it (default: beside vkcomm, or in ../lib)."`
	Quick bool   `help:"Measure nothing."`
}

// Help is the long text of vkcomm doctor --help.
func (*doctorCmd) Help() string {
	return `Shows the devices, and for those that would be ranks: how each pair is ordered and staged, how long a signal takes
from one to the other (us) and how fast the second reads what the first wrote to host memory (GB/s), what a
communicator would choose by size, and what stands in the way, with what to do about it.

Exit status: 0 when a communicator works here (and llama.cpp can be hooked), 1 when not, 2 for wrong arguments.

Examples:
  vkcomm doctor
  vkcomm doctor --devices 0,0 --json
  vkcomm doctor --llama /opt/llama.cpp/bin/llama-server`
}

// diagnosis is what doctor found, as JSON has it.
type diagnosis struct {
	Version      string            `json:"version"`
	Commit       string            `json:"commit"`
	Env          map[string]string `json:"env"`
	Shim         string            `json:"shim,omitempty"`
	Devices      []deviceReport    `json:"devices"`
	Ranks        []int             `json:"ranks"` // device of each rank
	Matrix       [][]pairReport    `json:"matrix"`
	Communicator *decision         `json:"communicator,omitempty"`
	Llama        *llamaReport      `json:"llama,omitempty"`
	Findings     []finding         `json:"findings"`
	OK           bool              `json:"ok"`

	stuck bool // a queue may still use what was not freed
}

type deviceReport struct {
	Index          int      `json:"index"`
	Name           string   `json:"name"`
	Driver         string   `json:"driver"`
	Kind           string   `json:"kind"`
	API            string   `json:"api"`
	DeviceUUID     string   `json:"deviceUUID"`
	DriverUUID     string   `json:"driverUUID"`
	PCI            string   `json:"pci,omitempty"`
	Link           *pciLink `json:"link,omitempty"`
	Heaps          []heap   `json:"heaps"`
	Queues         []string `json:"queues"`
	Extensions     []string `json:"extensions"`
	Missing        []string `json:"missingExtensions"`
	Timeline       bool     `json:"timelineSemaphores"`
	Shareable      bool     `json:"timelineShareable"`
	TransferQueue  bool     `json:"transferQueue"`
	ImportAlign    uint64   `json:"hostImportAlignment"` // 0: none
	ImportMiB      int64    `json:"hostImportMiB"`       // largest that was tried and worked
	MaxStorageMiB  uint64   `json:"maxStorageRangeMiB"`
	HostVisibleMiB uint64   `json:"hostVisibleVramMiB"`
}

type heap struct {
	MiB        uint64 `json:"MiB"`
	Local      bool   `json:"deviceLocal"`
	HostWindow bool   `json:"hostVisible"` // device-local and host-visible
}

// finding is something that stands in the way, or slows down.
type finding struct {
	Level string `json:"level"` // problem: no communicator; note: works, but
	What  string `json:"what"`
	Do    string `json:"do"`
}

func (d *diagnosis) problem(what, do string) {
	d.Findings = append(d.Findings, finding{"problem", what, do})
}

func (d *diagnosis) note(what, do string) {
	d.Findings = append(d.Findings, finding{"note", what, do})
}

// Run finds out and prints.
func (c *doctorCmd) Run(o *output) error {
	d := &diagnosis{Version: version, Commit: commit, Env: ownEnvironment(os.Environ()), Devices: []deviceReport{}, Ranks: []int{},
		Matrix: [][]pairReport{}, Findings: []finding{}}
	d.process(c.Lib)
	if err := c.vulkan(d); err != nil {
		return err
	}
	if c.Llama != "" {
		d.Llama = inspectLlama(c.Llama)
		for _, f := range d.Llama.findings {
			d.Findings = append(d.Findings, f)
		}
	}
	d.OK = !slices.ContainsFunc(d.Findings, func(f finding) bool { return f.Level == "problem" })
	if c.JSON {
		if err := writeJSON(o.out, d); err != nil {
			return err
		}
	} else {
		d.print(o.out)
	}
	if !d.OK {
		return &exitError{exitFailure, ""}
	}
	return nil
}

// process looks at what concerns the plugin's objects and this process's limits
// and environment.
func (d *diagnosis) process(lib string) {
	if shim, err := findLibrary(lib, shimName); err != nil {
		d.problem(err.Error(), "install the plugin, or name its directory with --lib")
	} else if d.Shim = shim; !exists(filepath.Join(filepath.Dir(shim), objectName)) {
		d.problem(fmt.Sprintf("%s is not beside %s", objectName, shim), "put both objects into one directory")
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &limit) == nil && limit.Cur < 2<<30 {
		d.problem(fmt.Sprintf("the address space is limited to %d MiB (RLIMIT_AS), and the plugin wants 2048", limit.Cur>>20), "ulimit -v unlimited")
	}
	if off := strings.ToLower(os.Getenv("GGML_VK_COMM_OFF")); off == "1" || off == "on" {
		d.note("GGML_VK_COMM_OFF is set: the plugin does nothing", "unset GGML_VK_COMM_OFF")
	}
	for name := range d.Env {
		if strings.HasPrefix(name, "GGML_VK_COMM_") && !slices.ContainsFunc(variables, func(v variable) bool { return v.name == name }) {
			d.note(name+" is no variable of the plugin", "see vkcomm run --help")
		}
	}
	if value := os.Getenv("GGML_VK_VISIBLE_DEVICES"); value != "" {
		d.note("GGML_VK_VISIBLE_DEVICES="+value+" decides what llama.cpp sees, and is not obeyed here", "give vkcomm the same list: --devices "+value)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// vulkan looks at the devices. An error is one of the arguments.
func (c *doctorCmd) vulkan(d *diagnosis) error {
	all, err := vkimpl.OpenStandalone(nil, vkimpl.StandaloneOptions{})
	if err != nil {
		d.problem(err.Error(), "install libvulkan1 and the GPU's Vulkan driver; vulkaninfo --summary must list it")
		return nil
	}
	defer all.Close()
	for i := range all.Physical {
		d.Devices = append(d.Devices, describeDevice(all, i))
	}
	physical, err := c.ranks(all.Physical, 0)
	if err != nil {
		return &exitError{exitUsage, "doctor: " + err.Error()}
	}
	d.Ranks = physical
	d.devices(gpuIndices(all.Physical))
	if c.Quick || len(physical) < 2 {
		return nil
	}
	s, err := vkimpl.OpenStandalone(physical, vkimpl.StandaloneOptions{})
	if err != nil {
		d.problem(err.Error(), "see the driver's log")
		return nil
	}
	d.importLimits(s)
	d.pairs(s)
	d.communicator(s)
	if !d.stuck {
		s.Close()
	}
	return nil
}

func describeDevice(s *vkimpl.Standalone, index int) deviceReport {
	p, v := &s.Physical[index], s.Survey(index)
	r := deviceReport{Index: index, Name: p.Name, Driver: p.Driver, Kind: p.Kind, API: p.API,
		DeviceUUID: hex.EncodeToString(p.DeviceUUID[:]), DriverUUID: hex.EncodeToString(v.DriverUUID[:]),
		PCI: v.PCI, Link: readLink("/sys", v.PCI), Timeline: v.Timeline, Shareable: v.TimelineShareable,
		TransferQueue: p.TransferQueue, ImportAlign: v.HostImportAlignment, MaxStorageMiB: (v.MaxStorageRange + 1) >> 20,
		Extensions: []string{}, Missing: []string{}}
	for _, h := range v.Heaps {
		r.Heaps = append(r.Heaps, heap{h.Bytes >> 20, h.DeviceLocal, h.HostWindow})
		if h.HostWindow {
			r.HostVisibleMiB = max(r.HostVisibleMiB, h.Bytes>>20)
		}
	}
	for _, f := range v.Families {
		r.Queues = append(r.Queues, fmt.Sprintf("%d x %s", f.Queues, f.Does))
	}
	for _, e := range v.Extensions {
		if e.Has {
			r.Extensions = append(r.Extensions, e.Name)
		} else {
			r.Missing = append(r.Missing, e.Name)
		}
	}
	return r
}

// devices finds what the ranks' devices lack.
func (d *diagnosis) devices(gpus []int) {
	if len(gpus) < 2 {
		d.note(fmt.Sprintf("GPUs that Vulkan shows here: %d; -sm tensor needs two", len(gpus)), "with one GPU run llama.cpp without -sm tensor; what follows is a trial")
	}
	if len(d.Ranks) < 2 {
		d.problem("there is one rank, and a communicator needs two", "vkcomm doctor --ranks 2 tries two on the one device")
	}
	seen := map[int]bool{}
	for _, index := range d.Ranks {
		r := &d.Devices[index]
		if seen[index] {
			continue
		}
		seen[index] = true
		name := fmt.Sprintf("device %d (%s)", index, r.Name)
		if !r.Timeline {
			d.problem(name+" has no timeline semaphores", "update its driver")
		}
		if r.ImportAlign == 0 {
			d.problem(name+" cannot import host memory (VK_EXT_external_memory_host)", "update its driver; without it llama.cpp's own reduction is used")
		}
		if !r.TransferQueue {
			d.note(name+" has no transfer queue: large tensors use one direction of the link at a time", "nothing to do")
		}
		if r.Kind != "cpu" && r.HostVisibleMiB < 1 {
			d.note(name+" has no VRAM that the host can write: the relay (the fastest at decode) is not possible", "enable Resizable BAR in the firmware")
		}
		if r.Kind == "cpu" {
			d.note(name+" is a software device: good for trying, not for speed", "install the GPU's driver if there is a GPU")
		}
		if l := r.Link; l != nil && l.degraded() {
			d.note(fmt.Sprintf("%s runs its link at %s x%d of %s x%d", name, l.Speed, l.Width, l.MaxSpeed, l.MaxWidth), "idle GPUs lower the speed; a lower width is a matter of slot or riser")
		}
	}
}

// importLimits tries how much host memory each device imports at once.
func (d *diagnosis) importLimits(s *vkimpl.Standalone) {
	tried := map[int]bool{}
	for rank, index := range d.Ranks {
		if tried[index] {
			continue
		}
		tried[index] = true
		for _, mib := range []int64{16, 64, 256} {
			ranks, err := vkimpl.Open(s.Adopted[rank:rank+1], s.Callbacks)
			if err == nil {
				err = ranks.ImportStaging(mib << 20)
				ranks.Close()
			}
			if err != nil {
				if mib == 16 {
					d.problem(fmt.Sprintf("device %d does not import 16 MiB of host memory: %v", index, err), "vkcomm run --staging-mb 4; check ulimit -l")
				}
				break
			}
			d.Devices[index].ImportMiB = mib
		}
	}
}

// print writes the diagnosis for people.
func (d *diagnosis) print(w io.Writer) {
	fmt.Fprintf(w, "vkcomm %s (%s)\n", d.Version, d.Commit)
	if d.Shim != "" {
		fmt.Fprintf(w, "plugin: %s\n", d.Shim)
	}
	for i := range d.Devices {
		d.Devices[i].print(w)
	}
	if len(d.Matrix) > 0 {
		d.printMatrix(w)
	}
	if c := d.Communicator; c != nil {
		c.print(w)
	}
	if d.Llama != nil {
		d.Llama.print(w)
	}
	fmt.Fprintln(w)
	for _, f := range d.Findings {
		fmt.Fprintf(w, "%s: %s\n  -> %s\n", f.Level, f.What, f.Do)
	}
	if d.OK {
		fmt.Fprintln(w, "ok: nothing stands in the way")
	}
}

func (r *deviceReport) print(w io.Writer) {
	fmt.Fprintf(w, "\ndevice %d: %s (%s, %s, Vulkan %s)\n", r.Index, r.Name, r.Driver, r.Kind, r.API)
	fmt.Fprintf(w, "  UUID %s, driver UUID %s\n", r.DeviceUUID, r.DriverUUID)
	link := "link unknown"
	if r.Link != nil {
		link = fmt.Sprintf("link %s x%d (at most %s x%d), NUMA node %d", r.Link.Speed, r.Link.Width, r.Link.MaxSpeed, r.Link.MaxWidth, r.Link.Node)
	}
	fmt.Fprintf(w, "  PCI %s, %s\n", orNone(r.PCI), link)
	var heaps []string
	for _, h := range r.Heaps {
		kind := "host"
		switch {
		case h.HostWindow:
			kind = "VRAM, host-visible"
		case h.Local:
			kind = "VRAM"
		}
		heaps = append(heaps, fmt.Sprintf("%d MiB (%s)", h.MiB, kind))
	}
	fmt.Fprintf(w, "  heaps: %s\n  queues: %s\n", strings.Join(heaps, ", "), strings.Join(r.Queues, ", "))
	fmt.Fprintf(w, "  has: %s\n", strings.Join(r.Extensions, " "))
	if len(r.Missing) > 0 {
		fmt.Fprintf(w, "  lacks: %s\n", strings.Join(r.Missing, " "))
	}
	tried := ""
	if r.ImportMiB > 0 {
		tried = fmt.Sprintf(", %d MiB at once works", r.ImportMiB)
	}
	if r.ImportAlign > 0 {
		fmt.Fprintf(w, "  host memory: imported in multiples of %d bytes%s; storage buffers up to %d MiB\n", r.ImportAlign, tried, r.MaxStorageMiB)
	}
}

// pairReport is a cell of the matrix: from the row's rank to the column's.
type pairReport struct {
	Ordering  string  `json:"ordering"`      // native, proxy or none
	Why       string  `json:"why,omitempty"` // it is not native
	Staging   string  `json:"staging"`       // host or none
	LatencyUs float64 `json:"latencyUs"`
	GBps      float64 `json:"gbps"`
	P2P       string  `json:"p2p"`     // host where it is not possible, else how
	P2PGBps   float64 `json:"p2pGbps"` // 0: not possible
	WhyNotP2P string  `json:"whyNotP2P,omitempty"`
}

const (
	pairBytes   = 4 << 20
	pairRepeats = 5
)

// pairs fills in the matrix.
func (d *diagnosis) pairs(s *vkimpl.Standalone) {
	world := len(d.Ranks)
	d.Matrix = make([][]pairReport, world)
	for i := range d.Matrix {
		d.Matrix[i] = make([]pairReport, world)
	}
	for i := range world {
		for j := i + 1; j < world; j++ {
			there, back, err := measurePair(s, i, j)
			d.Matrix[i][j], d.Matrix[j][i] = there, back
			if err != nil {
				d.stuck = true
				d.problem(fmt.Sprintf("ranks %d and %d: %v", i, j, err), "see the devices above; vkcomm run --proxy may help where native ordering fails")
			}
		}
	}
}

func measurePair(s *vkimpl.Standalone, i, j int) (there, back pairReport, err error) {
	there = pairReport{Ordering: "none", Staging: "none"}
	back = there
	g, err := openRig(s, []vkimpl.Adopted{s.Adopted[i], s.Adopted[j]}, 2*pairBytes, pairBytes, semaphores.Auto)
	if err != nil {
		return there, back, err
	}
	there = pairReport{Ordering: string(g.ranks.Kind()), Why: g.why, Staging: "host"}
	hop, err := g.hop(pairRepeats)
	there.LatencyUs = 1e6 * hop
	back = there
	for from, out := range []*pairReport{&there, &back} {
		if err == nil {
			out.GBps, err = g.pairRate(from, 1-from)
		}
	}
	if err == nil {
		err = g.pairP2P(&there, &back)
	}
	if err == nil { // else something may be in flight
		g.close()
	}
	return there, back, err
}

// pairP2P measures again with staging in the owner's VRAM.
func (g *rig) pairP2P(there, back *pairReport) (err error) {
	moved, refused := g.openP2P()
	for from, out := range []*pairReport{there, back} {
		out.P2P = moved[from]
		if g.ranks.StagingHandle(from) == vkimpl.HostMemory {
			out.WhyNotP2P = strings.Join(refused, "; ")
		} else if err == nil {
			out.P2PGBps, err = g.pairRate(from, 1-from)
		}
	}
	return err
}

// pairRate is how fast data gets from a rank's memory to its staging and from
// there to the other rank's memory: the slower of the two, in GB/s.
func (g *rig) pairRate(from, to int) (float64, error) {
	least := 0.0
	for _, steps := range []func(int) []step{only(from, g.linkSteps(from, from, pairBytes, true)), only(to, g.linkSteps(to, from, pairBytes, false))} {
		t, err := g.record(steps)
		if err != nil {
			return 0, err
		}
		seconds, err := g.measure(t, 1, pairRepeats, 2)
		if err != nil {
			return 0, err
		}
		t.close()
		if rate := pairBytes / percentile(seconds, 50) / 1e9; least == 0 || rate < least {
			least = rate
		}
	}
	return least, nil
}

func (d *diagnosis) printMatrix(w io.Writer) {
	fmt.Fprintf(w, "\nfrom row to column: ordering/staging, us a signal, GB/s through host memory; with --p2p GB/s from VRAM\n%8s", "")
	for j, index := range d.Ranks {
		fmt.Fprintf(w, " %44s", fmt.Sprintf("rank %d (device %d)", j, index))
	}
	fmt.Fprintln(w)
	for i, cells := range d.Matrix {
		fmt.Fprintf(w, "  rank %d", i)
		for j, c := range cells {
			text := "-"
			if i != j {
				text = fmt.Sprintf("%s/%s %s us %s GB/s", c.Ordering, c.Staging, fixed(c.LatencyUs, 7), fixed(c.GBps, 7))
				if c.P2PGBps > 0 {
					text += fmt.Sprintf("; %s %s", c.P2P, fixed(c.P2PGBps, 7))
				}
			}
			fmt.Fprintf(w, " %44s", text)
		}
		fmt.Fprintln(w)
	}
	var said []string
	for i, cells := range d.Matrix {
		for j, c := range cells {
			for _, why := range []string{prefixed("not native: ", c.Why), prefixed("no peer-to-peer: ", c.WhyNotP2P)} {
				if i != j && why != "" && !slices.Contains(said, why) {
					said = append(said, why)
					fmt.Fprintf(w, "  %s\n", why)
				}
			}
		}
	}
}

// prefixed leaves nothing as nothing.
func prefixed(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}
