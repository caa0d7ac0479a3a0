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
	proxies map[int][]Mirror
	shared  map[Handle]Handle // view -> progress
	calls   int
	failAt  int
}

func newLedger(failAt int) *ledger {
	return &ledger{live: map[Handle]int{}, proxies: map[int][]Mirror{}, shared: map[Handle]Handle{}, failAt: failAt}
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

func (l *ledger) StartProxy(rank int, timeline Handle, mirrors []Mirror) error {
	if err := l.call(); err != nil {
		return err
	}
	l.proxies[rank] = mirrors
	return nil
}

func (l *ledger) StopProxies() { clear(l.proxies) }

func TestEveryPairHasAView(t *testing.T) {
	for _, kind := range []Kind{Native, Proxy} {
		for world := 2; world <= 6; world++ {
			l := newLedger(0)
			o, err := New(kind, world, l)
			if err != nil {
				t.Fatal(err)
			}
			for r := range world {
				for p := range world {
					v := o.View(r, p)
					if (v != 0) != (r != p) {
						t.Fatalf("%s n=%d: view of %d on %d is %d", kind, world, p, r, v)
					}
					if r == p {
						continue
					}
					if l.live[v] != r {
						t.Errorf("%s n=%d: view of %d for %d lives on rank %d", kind, world, p, r, l.live[v])
					}
					if kind == Native && l.shared[v] != o.Progress(p) {
						t.Errorf("native n=%d: view of %d for %d shares %d", world, p, r, l.shared[v])
					}
					if kind == Proxy && !carries(l.proxies[p], r, v) {
						t.Errorf("proxy n=%d: nobody carries %d to %d", world, p, r)
					}
				}
			}
			o.Close()
			if len(l.live) != 0 || len(l.proxies) != 0 {
				t.Errorf("%s n=%d: left behind: %v %v", kind, world, l.live, l.proxies)
			}
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
		o, err := New(kind, 4, l)
		if err != nil {
			t.Fatal(err)
		}
		o.Close()
		for k := 1; k <= l.calls; k++ {
			f := newLedger(k)
			if _, err := New(kind, 4, f); !errors.Is(err, errInjected) {
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
