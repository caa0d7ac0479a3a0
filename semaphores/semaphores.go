// Package semaphores orders ranks that live on different devices.
//
// Every rank's compute queue signals one timeline semaphore, its progress. A
// rank that reads what a peer wrote waits for the peer's progress, on a
// semaphore of its own device that follows the peer's. How it follows is an
// [Ordering]:
//
//   - native: the peer's timeline is exported as OPAQUE_FD and imported, the
//     devices signal each other and the host is not involved. It needs one
//     driver for all ranks (equal driverUUID) that says it can.
//   - proxy: a mirror timeline, which a host thread of the peer signals once
//     the peer's own has moved. It needs timeline semaphores and nothing else,
//     so it works between any two vendors.
//
// [Choose] picks by what the devices say and what the user asked for; whether
// the choice works is for the communicator's self-test to find out.
//
// The package sees Vulkan through [Backend] alone.
package semaphores

import (
	"errors"
	"fmt"
)

// Handle is a VkSemaphore.
type Handle uintptr

// Mirror is a timeline on a peer's device that a proxy signals.
type Mirror struct {
	Peer   int
	Handle Handle
}

// Backend is what an ordering needs of the ranks' devices. Ranks count from 0.
type Backend interface {
	// NewTimeline makes a timeline semaphore at value 0 on a rank's device.
	NewTimeline(rank int, exportable bool) (Handle, error)
	// ShareTimeline makes a semaphore on device to that shares the payload of
	// an exportable timeline of device from.
	ShareTimeline(from int, timeline Handle, to int) (Handle, error)
	Destroy(rank int, timeline Handle)
	// StartProxy starts the thread that carries a rank's timeline to mirrors.
	// StopProxies ends all of them.
	StartProxy(rank int, timeline Handle, mirrors []Mirror) error
	StopProxies()
}

// Ordering is the set of semaphores of one communicator.
type Ordering struct {
	kind     Kind
	backend  Backend
	progress []Handle
	view     [][]Handle // [rank][peer]: the peer's progress as seen by rank
}

// Kind of ordering, spelled as in the environment and in the log.
type Kind string

const (
	Native Kind = "native"
	Proxy  Kind = "proxy"
)

// Kind returns which ordering this is.
func (o *Ordering) Kind() Kind { return o.kind }

// Progress is the timeline that rank's compute queue signals.
func (o *Ordering) Progress(rank int) Handle { return o.progress[rank] }

// View is the semaphore on which rank waits for peer's progress.
func (o *Ordering) View(rank, peer int) Handle { return o.view[rank][peer] }

// New makes the semaphores of an ordering over world ranks. On an error
// nothing is left behind.
func New(kind Kind, world int, backend Backend) (*Ordering, error) {
	o := &Ordering{kind: kind, backend: backend, progress: make([]Handle, world), view: make([][]Handle, world)}
	for r := range o.view {
		o.view[r] = make([]Handle, world)
	}
	var err error
	switch kind {
	case Native:
		err = o.makeNative()
	case Proxy:
		err = o.makeProxy()
	default:
		err = fmt.Errorf("semaphores: unknown ordering %q", kind)
	}
	if err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

func (o *Ordering) makeProgress(exportable bool) error {
	for r := range o.progress {
		h, err := o.backend.NewTimeline(r, exportable)
		if err != nil {
			return fmt.Errorf("timeline of rank %d: %w", r, err)
		}
		o.progress[r] = h
	}
	return nil
}

func (o *Ordering) makeNative() error {
	if err := o.makeProgress(true); err != nil {
		return err
	}
	for r := range o.view {
		for p := range o.view {
			if p == r {
				continue
			}
			h, err := o.backend.ShareTimeline(p, o.progress[p], r)
			if err != nil {
				return fmt.Errorf("timeline of rank %d on the device of rank %d: %w", p, r, err)
			}
			o.view[r][p] = h
		}
	}
	return nil
}

func (o *Ordering) makeProxy() error {
	if err := o.makeProgress(false); err != nil {
		return err
	}
	for p := range o.progress {
		var mirrors []Mirror
		for r := range o.view {
			if r == p {
				continue
			}
			h, err := o.backend.NewTimeline(r, false)
			if err != nil {
				return fmt.Errorf("mirror of rank %d on the device of rank %d: %w", p, r, err)
			}
			o.view[r][p] = h
			mirrors = append(mirrors, Mirror{Peer: r, Handle: h})
		}
		if err := o.backend.StartProxy(p, o.progress[p], mirrors); err != nil {
			return fmt.Errorf("proxy of rank %d: %w", p, err)
		}
	}
	return nil
}

// Close ends the proxies and destroys the semaphores. No queue may wait for or
// signal one of them any more.
func (o *Ordering) Close() {
	o.backend.StopProxies() // before the semaphores that they use
	for r := range o.view {
		for _, h := range o.view[r] {
			if h != 0 {
				o.backend.Destroy(r, h)
			}
		}
		if o.progress[r] != 0 {
			o.backend.Destroy(r, o.progress[r])
		}
	}
	o.progress, o.view = nil, nil
}

// Device is what Choose looks at.
type Device struct {
	DriverUUID [16]byte
	// Shareable: the driver says that timelines can be exported and imported
	// as OPAQUE_FD (vkGetPhysicalDeviceExternalSemaphoreProperties), and the
	// extension that does it is enabled.
	Shareable bool
}

// Preference is what GGML_VK_COMM_PROXY asks for.
type Preference uint8

const (
	Auto Preference = iota
	ForceProxy
	ForbidProxy
)

// ErrNoOrdering: the devices cannot share semaphores and the proxy is forbidden.
var ErrNoOrdering = errors.New("semaphores cannot be shared between the devices and the proxy is forbidden")

// Choose returns the orderings to try, best first, and why native is not among
// them, if so. The Vulkan specification wants equal deviceUUIDs as well for an
// OPAQUE_FD payload; drivers whose timelines are kernel objects (Mesa, NVIDIA)
// share between devices of one driver all the same, which the self-test shows.
func Choose(devices []Device, preference Preference) (kinds []Kind, why string, err error) {
	if preference != ForceProxy {
		why = notShareable(devices)
		if why == "" {
			kinds = append(kinds, Native)
		}
	} else {
		why = "the proxy is forced"
	}
	if preference != ForbidProxy {
		kinds = append(kinds, Proxy)
	}
	if len(kinds) == 0 {
		return nil, why, fmt.Errorf("%w: %s", ErrNoOrdering, why)
	}
	return kinds, why, nil
}

func notShareable(devices []Device) string {
	for r, d := range devices {
		if d.DriverUUID != devices[0].DriverUUID {
			return fmt.Sprintf("ranks 0 and %d have different drivers", r)
		}
		if !d.Shareable {
			return fmt.Sprintf("the driver of rank %d cannot share timeline semaphores", r)
		}
	}
	return ""
}
