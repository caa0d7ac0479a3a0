// Package semaphores orders ranks that live on different devices.
//
// Every queue of a rank signals one timeline semaphore, its progress. A rank
// that reads what a peer wrote waits for the progress of the peer's queue, on a
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
	// StartProxy starts the thread that carries the timeline of a rank's queue
	// to mirrors. StopProxies ends all of them.
	StartProxy(rank, queue int, timeline Handle, mirrors []Mirror) error
	StopProxies()
}

// Ordering is the set of semaphores of one communicator.
type Ordering struct {
	kind     Kind
	backend  Backend
	progress [][]Handle   // [rank][queue]
	view     [][][]Handle // [rank][peer][queue]: the peer's progress as seen by rank
}

// Kind of ordering, spelled as in the environment and in the log.
type Kind string

const (
	Native Kind = "native"
	Proxy  Kind = "proxy"
)

// Kind returns which ordering this is.
func (o *Ordering) Kind() Kind { return o.kind }

// Progress is the timeline that a queue of rank signals.
func (o *Ordering) Progress(rank, queue int) Handle { return o.progress[rank][queue] }

// View is the semaphore on which rank waits for the progress of peer's queue.
func (o *Ordering) View(rank, peer, queue int) Handle { return o.view[rank][peer][queue] }

// New makes the semaphores of an ordering over len(queues) ranks, where rank r
// has queues[r] queues. On an error nothing is left behind.
func New(kind Kind, queues []int, backend Backend) (*Ordering, error) {
	if kind != Native && kind != Proxy {
		return nil, fmt.Errorf("semaphores: unknown ordering %q", kind)
	}
	o := &Ordering{kind: kind, backend: backend, progress: make([][]Handle, len(queues)), view: make([][][]Handle, len(queues))}
	for r := range queues {
		o.progress[r] = make([]Handle, queues[r])
		o.view[r] = make([][]Handle, len(queues))
		for p := range queues {
			o.view[r][p] = make([]Handle, queues[p])
		}
	}
	for r := range queues {
		for q := range queues[r] {
			if err := o.add(r, q); err != nil {
				o.Close()
				return nil, fmt.Errorf("timeline of rank %d, queue %d: %w", r, q, err)
			}
		}
	}
	return o, nil
}

// add makes the timeline of one queue and lets every other rank see it.
func (o *Ordering) add(rank, queue int) error {
	h, err := o.backend.NewTimeline(rank, o.kind == Native)
	if err != nil {
		return err
	}
	o.progress[rank][queue] = h
	var mirrors []Mirror
	for r := range o.view {
		if r == rank {
			continue
		}
		var seen Handle
		if o.kind == Native {
			seen, err = o.backend.ShareTimeline(rank, h, r)
		} else {
			seen, err = o.backend.NewTimeline(r, false)
		}
		if err != nil {
			return fmt.Errorf("on the device of rank %d: %w", r, err)
		}
		o.view[r][rank][queue] = seen
		mirrors = append(mirrors, Mirror{Peer: r, Handle: seen})
	}
	if o.kind == Proxy {
		return o.backend.StartProxy(rank, queue, h, mirrors)
	}
	return nil
}

// Close ends the proxies and destroys the semaphores. No queue may wait for or
// signal one of them any more.
func (o *Ordering) Close() {
	o.backend.StopProxies() // before the semaphores that they use
	destroy := func(rank int, handles []Handle) {
		for _, h := range handles {
			if h != 0 {
				o.backend.Destroy(rank, h)
			}
		}
	}
	for r := range o.view {
		for _, seen := range o.view[r] {
			destroy(r, seen)
		}
		destroy(r, o.progress[r])
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
