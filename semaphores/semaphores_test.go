package semaphores

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// ledger is a Backend that counts what exists and fails at the k-th call.
type ledger struct {
	next    Handle
	live    map[Handle]int // handle -> rank
	proxies map[[2]int][]Mirror
	shared  map[Handle]Handle // view -> progress
	calls   int
	failAt  int
}

func newLedger(failAt int) *ledger {
	return &ledger{live: map[Handle]int{}, proxies: map[[2]int][]Mirror{}, shared: map[Handle]Handle{}, failAt: failAt}
}

var errInjected = errors.New("injected")

func (l *ledger) call() error {
	l.calls++
	if l.calls == l.failAt {
		return errInjected
	}
	return nil
}

func (l *ledger) NewTimeline(rank int, exportable bool) (Handle, error) {
	if err := l.call(); err != nil {
		return 0, err
	}
	l.next++
	l.live[l.next] = rank
	return l.next, nil
}

func (l *ledger) ShareTimeline(from int, timeline Handle, to int) (Handle, error) {
	if l.live[timeline] != from {
		return 0, fmt.Errorf("timeline %d is not rank %d's", timeline, from)
	}
	h, err := l.NewTimeline(to, false)
	if err == nil {
		l.shared[h] = timeline
	}
	return h, err
}

func (l *ledger) Destroy(rank int, timeline Handle) {
	if r, ok := l.live[timeline]; !ok || r != rank {
		panic(fmt.Sprintf("destroys %d of rank %d, which is not there", timeline, rank))
	}
	if len(l.proxies) > 0 {
		panic("destroys a semaphore under a running proxy")
	}
	delete(l.live, timeline)
}

func (l *ledger) StartProxy(rank, queue int, timeline Handle, mirrors []Mirror) error {
	if err := l.call(); err != nil {
		return err
	}
	l.proxies[[2]int{rank, queue}] = mirrors
	return nil
}

func (l *ledger) StopProxies() { clear(l.proxies) }

// queuesOf gives every other rank a second queue.
func queuesOf(world int) []int {
	queues := make([]int, world)
	for r := range queues {
		queues[r] = 1 + r%2
	}
	return queues
}

func TestEveryRankSeesEveryQueue(t *testing.T) {
	for _, kind := range []Kind{Native, Proxy} {
		for world := 2; world <= 6; world++ {
			l := newLedger(0)
			o, err := New(kind, queuesOf(world), l)
			if err != nil {
				t.Fatal(err)
			}
			for p, n := range queuesOf(world) {
				for q := range n {
					checkViews(t, l, o, world, p, q)
				}
			}
			o.Close()
			if len(l.live) != 0 || len(l.proxies) != 0 {
				t.Errorf("%s n=%d: left behind: %v %v", kind, world, l.live, l.proxies)
			}
		}
	}
}

func checkViews(t *testing.T, l *ledger, o *Ordering, world, peer, queue int) {
	t.Helper()
	for r := range world {
		v := o.View(r, peer, queue)
		switch {
		case r == peer && v == 0:
		case r == peer:
			t.Errorf("%s n=%d: rank %d has a view of itself", o.Kind(), world, r)
		case l.live[v] != r || v == 0:
			t.Errorf("%s n=%d: view of %d/%d for %d lives on rank %d", o.Kind(), world, peer, queue, r, l.live[v])
		case o.Kind() == Native && l.shared[v] != o.Progress(peer, queue):
			t.Errorf("native n=%d: view of %d/%d for %d shares %d", world, peer, queue, r, l.shared[v])
		case o.Kind() == Proxy && !carries(l.proxies[[2]int{peer, queue}], r, v):
			t.Errorf("proxy n=%d: nobody carries %d/%d to %d", world, peer, queue, r)
		}
	}
}

func carries(mirrors []Mirror, peer int, h Handle) bool {
	for _, m := range mirrors {
		if m == (Mirror{Peer: peer, Handle: h}) {
			return true
		}
	}
	return false
}

func TestFailureAtAnyCallLeavesNothing(t *testing.T) {
	for _, kind := range []Kind{Native, Proxy} {
		l := newLedger(0)
		o, err := New(kind, queuesOf(4), l)
		if err != nil {
			t.Fatal(err)
		}
		o.Close()
		for k := 1; k <= l.calls; k++ {
			f := newLedger(k)
			if _, err := New(kind, queuesOf(4), f); !errors.Is(err, errInjected) {
				t.Errorf("%s: call %d failed, New says %v", kind, k, err)
			}
			if len(f.live) != 0 || len(f.proxies) != 0 {
				t.Errorf("%s: call %d failed, left behind: %v %v", kind, k, f.live, f.proxies)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	nvidia := Device{DriverUUID: [16]byte{1}, Shareable: true}
	radv := Device{DriverUUID: [16]byte{2}}
	for _, c := range []struct {
		name       string
		devices    []Device
		preference Preference
		want       []Kind
		fails      bool
	}{
		{"one driver that shares", []Device{nvidia, nvidia}, Auto, []Kind{Native, Proxy}, false},
		{"one driver that does not", []Device{radv, radv}, Auto, []Kind{Proxy}, false},
		{"two drivers", []Device{nvidia, radv}, Auto, []Kind{Proxy}, false},
		{"second rank does not share", []Device{nvidia, {DriverUUID: nvidia.DriverUUID}}, Auto, []Kind{Proxy}, false},
		{"forced", []Device{nvidia, nvidia}, ForceProxy, []Kind{Proxy}, false},
		{"forbidden", []Device{nvidia, nvidia}, ForbidProxy, []Kind{Native}, false},
		{"forbidden and impossible", []Device{nvidia, radv}, ForbidProxy, nil, true},
	} {
		got, why, err := Choose(c.devices, c.preference)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if (err != nil) != c.fails || c.fails && !errors.Is(err, ErrNoOrdering) {
			t.Errorf("%s: error %v", c.name, err)
		}
		hasNative := len(c.want) > 0 && c.want[0] == Native
		if (why == "") != hasNative {
			t.Errorf("%s: reason %q", c.name, why)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
