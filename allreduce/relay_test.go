package allreduce

import (
	"testing"

	"pgregory.net/rapid"
)

// Any sequence of relayed reductions, of any sizes and with any ranks off, may
// use its two halves in turn.
func TestRelaySequences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(2, 16).Draw(t, "world")
		var sequence []*Schedule
		for i := range rapid.IntRange(1, 6).Draw(t, "reductions") {
			s, err := Relay(Params{World: world, Elements: rapid.Int64Range(1, RelayElements).Draw(t, "elements"),
				ZeroRanks: rapid.Uint64Range(0, 1<<world-1).Draw(t, "zero"), Half: i % 2})
			if err != nil {
				t.Fatal(err)
			}
			if s.Algorithm != AlgorithmRelay || s.Rounds != 1 {
				t.Fatalf("%s in %d rounds", s.Algorithm, s.Rounds)
			}
			sequence = append(sequence, s)
		}
		if err := Check(sequence); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRelayLimits(t *testing.T) {
	for _, p := range []Params{
		{World: 2, Elements: RelayElements + 1},
		{World: 2, Elements: 1, Wire: F16},
		{World: 1, Elements: 1},
	} {
		if _, err := Relay(p); err == nil {
			t.Errorf("%+v accepted", p)
		}
	}
}
