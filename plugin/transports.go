package plugin

import (
	"errors"
	"fmt"

	"ggmlvkcomm/semaphores"
)

// order takes the first ordering into use that passes the self-test. On an
// error the ranks are released.
func (c *Comm) order() error {
	var devices []semaphores.Device
	for _, d := range c.ranks.Devices {
		devices = append(devices, semaphores.Device{DriverUUID: d.DriverUUID, Shareable: d.TimelineShareable})
	}
	kinds, why, err := semaphores.Choose(devices, c.config.Proxy)
	if err != nil {
		c.ranks.Close()
		return err
	}
	if why != "" {
		logf(levelDebug, "native ordering is not used: %s", why)
	}
	failed := errors.New("no ordering")
	for i, kind := range kinds {
		if i > 0 {
			logf(levelWarn, "%v", failed) // of the last one it is the reason for no communicator
		}
		if err := c.ranks.Order(kind); err != nil {
			failed = fmt.Errorf("%s ordering: %w", kind, err)
			continue
		}
		if c.half, err = selfTest(c.ranks); err != nil {
			failed = fmt.Errorf("%s ordering: self-test: %w", kind, err)
			if !idle(c.ranks, releaseTimeout) {
				return failed // in use for ever: leaked rather than freed
			}
			continue
		}
		return nil
	}
	c.ranks.Close()
	return failed
}

// selectAlgorithms decides which algorithm serves which size, and allocates what the
// choice needs beyond staging.
func (c *Comm) selectAlgorithms() error {
	var forced bool
	c.choose, forced = newSelection(&c.config, len(c.ranks.Devices))
	if c.choose.usesWide() || transferQueues(c.ranks) != 0 {
		if err := c.ranks.AllocateScratch(); err != nil {
			return err
		}
	}
	if err := c.tryCopyQueues(); err != nil {
		return err
	}
	if c.config.Algo == nil || c.choose.wantsRelay() {
		c.openRelay()
	}
	c.choose.rules = c.choose.rules.Usable(c.ranks.HasRelay())
	if forced {
		return nil
	}
	var err error
	c.half, err = calibrate(c.ranks, &c.choose, c.half)
	if failed := c.ranks.Failed(); failed != nil {
		return fmt.Errorf("calibration: %w", failed)
	}
	if c.ranks.HasRelay() && c.ranks.RelayFailed() {
		return errors.New("calibration: a relayed kernel gave up")
	}
	if errors.Is(err, errStuck) {
		return fmt.Errorf("calibration: %w", err)
	}
	if err != nil {
		logf(levelDebug, "calibration: %v", err)
	}
	return nil
}

// tryCopyQueues leaves copy queues that do not pass the self-test. An error means
// that the communicator cannot do without them either.
func (c *Comm) tryCopyQueues() error {
	if transferQueues(c.ranks) == 0 {
		return nil
	}
	var failed error
	if c.half, failed = testCopyQueues(c.ranks); failed == nil {
		return nil
	}
	if !idle(c.ranks, releaseTimeout) {
		return fmt.Errorf("copy queues: self-test: %w", failed)
	}
	logf(levelWarn, "copy queues are not used, self-test: %v", failed)
	c.ranks.LeaveTransferQueues()
	return c.orderAnew()
}

// orderAnew repeats what order has chosen, after a Release.
func (c *Comm) orderAnew() (err error) {
	if err = c.ranks.Order(c.ranks.Kind()); err == nil {
		c.half, err = selfTest(c.ranks)
	}
	return err
}

// openRelay takes the relay into use if the devices can do it and it passes its
// self-test. Without it, semaphores do.
func (c *Comm) openRelay() {
	level := levelDebug
	if c.config.Algo != nil {
		level = levelWarn // it was asked for
	}
	if err := c.ranks.OpenRelay(); err != nil {
		logf(level, "no relay: %v", err)
		return
	}
	if err := testRelay(c.ranks); err != nil {
		logf(level, "no relay: self-test: %v", err)
		c.ranks.CloseRelay()
		return
	}
	host, device := c.ranks.RelayBytes()
	logf(levelDebug, "relay: %d bytes of host memory and %d bytes of host-visible device memory a rank", host, device)
}
