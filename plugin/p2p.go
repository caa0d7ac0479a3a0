package plugin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ggmlvkcomm/vkimpl"
)

const (
	// p2pMeasureLimit bounds the comparison of staging in host memory and in VRAM.
	p2pMeasureLimit = 50 * time.Millisecond
	// p2pSinkBytes are read at a time, less where staging is smaller.
	p2pSinkBytes = 4 << 20
	// p2pRetries of a measurement that speaks against VRAM.
	p2pRetries = 5
	// p2pNoise is how much slower than host memory a measurement may come out and
	// still count as equal. The owner writes VRAM faster in any case.
	p2pNoise = 0.95
)

// peerStaging is where the staging went that GGML_VK_COMM_P2P asked to move.
type peerStaging struct {
	speed  string // of the peers' reads, against host memory
	kernel string // what fdinfo says of it
}

// moveStaging puts the ranks' staging where peers read it from VRAM, as far as
// that is possible, right and no slower; the rest stays in host memory. An error
// means that queues still use what cannot be freed then.
func (c *Comm) moveStaging() error {
	before := readDRMUsage("/proc/self/fdinfo")
	possible, failures := c.ranks.OpenP2P()
	c.p2p = peerStaging{speed: "not compared", kernel: "not moved"}
	if len(failures) > 0 {
		logf(levelWarn, "P2P: %s", pairsText(failures))
	}
	if len(c.movedRanks()) == 0 {
		logf(levelDebug, "P2P: %s", matrix(possible))
		return nil
	}
	if err := c.testMoved(); err != nil {
		return err
	}
	if len(c.movedRanks()) == 0 {
		return nil // a line has said why
	}
	if err := c.dropSlow(); err != nil {
		return err
	}
	c.checkPlacement(before)
	c.ranks.SettleP2P()
	logf(levelInfo, "P2P: %s; in use for ranks %v of %d; reads %s; memory %s", matrix(possible), c.movedRanks(), len(possible), c.p2p.speed, c.p2p.kernel)
	return nil
}

// movedRanks are those whose staging is in their own device's memory.
func (c *Comm) movedRanks() (owners []int) {
	for owner := range c.ranks.Devices {
		if c.ranks.StagingHandle(owner) != vkimpl.HostMemory {
			owners = append(owners, owner)
		}
	}
	return owners
}

func (c *Comm) leaveP2P() {
	for owner := range c.ranks.Devices {
		c.ranks.LeaveP2P(owner)
	}
}

// testMoved repeats the self-test; where it fails, all staging goes back, and
// semaphores that had to be released are made anew.
func (c *Comm) testMoved() error {
	var failed error
	if c.half, failed = selfTest(c.ranks); failed == nil {
		return nil
	}
	logf(levelWarn, "P2P: not used, self-test: %v", failed)
	if !idle(c.ranks, releaseTimeout) {
		return fmt.Errorf("P2P: self-test: %w", failed)
	}
	c.leaveP2P()
	return c.orderAnew()
}

// dropSlow takes owners out of P2P whose peers would read faster from host memory.
func (c *Comm) dropSlow() error {
	if slices.ContainsFunc(c.ranks.Devices, func(d *vkimpl.Device) bool { return d.OnCPU }) {
		c.p2p.speed = "not compared (a software device has one memory)"
		return nil
	}
	speeds, err := c.measureReads()
	if err != nil {
		if !idle(c.ranks, releaseTimeout) {
			return fmt.Errorf("P2P: %w", err)
		}
		logf(levelWarn, "P2P: not used, reads could not be measured: %v", err)
		c.leaveP2P()
		return nil
	}
	for _, owner := range c.movedRanks() {
		if peer, slow := slowest(owner, speeds[owner]); slow {
			s := speeds[owner][peer]
			logf(levelWarn, "P2P: staging of rank %d stays in host memory: rank %d reads it at %.1f GB/s from VRAM, %.1f GB/s from host memory",
				owner, peer, s.vram/1e9, s.host/1e9)
			c.ranks.LeaveP2P(owner)
		}
	}
	c.p2p.speed = speedText(speeds)
	return nil
}

// readSpeed in bytes/s. 0: not measured.
type readSpeed struct{ vram, host float64 }

// measureReads returns [owner][reader].
func (c *Comm) measureReads() ([][]readSpeed, error) {
	deadline := time.Now().Add(p2pMeasureLimit)
	speeds := make([][]readSpeed, len(c.ranks.Devices))
	for owner := range speeds {
		speeds[owner] = make([]readSpeed, len(speeds))
	}
	for reader := range speeds {
		sink, _, err := c.ranks.DeviceBuffer(reader, min(p2pSinkBytes, c.ranks.StagingBytes())/4)
		if err != nil {
			return nil, err
		}
		if err = c.measureReader(reader, sink, deadline, speeds); err != nil && !idle(c.ranks, releaseTimeout) {
			return nil, err // the sink stays alive: a queue may still use it
		}
		sink.Close()
		if err != nil {
			return nil, err
		}
	}
	return speeds, nil
}

// measureReader fills in [owner][reader] for one reader. Host memory is the same
// whoever owns it. What looks slow is measured again, and the best counts: a GPU
// that was idle takes a while to wake.
func (c *Comm) measureReader(reader int, sink *vkimpl.Buffer, deadline time.Time, speeds [][]readSpeed) (err error) {
	best := func(speed *float64, owner int, host bool) error {
		again, err := c.ranks.ReadSpeed(reader, owner, host, sink, selfTestTimeout)
		*speed = max(*speed, again)
		return err
	}
	host := 0.0
	for _, owner := range c.movedRanks() {
		if owner == reader {
			continue
		}
		vram := 0.0
		for try := 0; try < 1+p2pRetries && (try == 0 || vram < host*p2pNoise && time.Now().Before(deadline)); try++ {
			if host == 0 || try > 0 {
				err = best(&host, owner, true)
			}
			if err == nil {
				err = best(&vram, owner, false)
			}
			if err != nil {
				return err
			}
		}
		if speeds[owner][reader] = (readSpeed{vram, host}); time.Now().After(deadline) {
			return fmt.Errorf("it takes longer than %v", p2pMeasureLimit)
		}
	}
	return nil
}

// slowest of owner's readers by comparison with host memory; slow: by too much.
func slowest(owner int, readers []readSpeed) (peer int, slow bool) {
	least := 0.0
	for i, s := range readers {
		if i == owner || s.host == 0 {
			continue
		}
		if ratio := s.vram / s.host; least == 0 || ratio < least {
			peer, least = i, ratio
		}
	}
	return peer, least < p2pNoise
}

// checkPlacement asks the kernel where the memory went once peers have read it.
func (c *Comm) checkPlacement(before drmUsage) {
	moved := len(c.movedRanks())
	if moved == 0 {
		return
	}
	var fallback bool
	c.p2p.kernel, fallback = settled(before, readDRMUsage("/proc/self/fdinfo"), moved, uint64(c.ranks.StagingBytes()))
	if fallback {
		logf(levelWarn, "P2P: the exported staging is %s", c.p2p.kernel)
	}
}

// stagingText says where staging lies, for the line that proves activity.
func (c *Comm) stagingText() string {
	moved := c.movedRanks()
	switch {
	case len(moved) == 0:
		return "host memory"
	case len(moved) == len(c.ranks.Devices):
		return fmt.Sprintf("device memory (%v)", c.ranks.StagingHandle(0))
	}
	return fmt.Sprintf("device memory (%v) of ranks %v and host memory", c.ranks.StagingHandle(moved[0]), moved)
}

// matrix shows what each pair could do: a row an owner, a column a reader.
func matrix(possible [][]vkimpl.Handle) string {
	var rows []string
	for owner, row := range possible {
		var cells []string
		for reader, h := range row {
			if reader == owner {
				cells = append(cells, "-")
			} else {
				cells = append(cells, h.String())
			}
		}
		rows = append(rows, fmt.Sprintf("rank %d to each [%s]", owner, strings.Join(cells, ", ")))
	}
	return strings.Join(rows, ", ")
}

// pairsText names the first pair in full and counts the others.
func pairsText(failures []*vkimpl.PairError) string {
	text := failures[0].Error()
	if len(failures) > 1 {
		text += fmt.Sprintf(" (and %d more pairs)", len(failures)-1)
	}
	return text + "; the staging of such a rank stays in host memory"
}

// speedText is the least and the most that peers read from VRAM.
func speedText(speeds [][]readSpeed) string {
	var vram, host []float64
	for _, row := range speeds {
		for _, s := range row {
			if s.vram > 0 {
				vram, host = append(vram, s.vram/1e9), append(host, s.host/1e9)
			}
		}
	}
	return fmt.Sprintf("%.1f to %.1f GB/s from VRAM, %.1f to %.1f GB/s from host memory",
		slices.Min(vram), slices.Max(vram), slices.Min(host), slices.Max(host))
}
