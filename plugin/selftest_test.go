package plugin

import "testing"

// What an earlier trial left in staging must differ from what a later one is to
// bring there, in every element, or a transport that brings nothing could pass.
func TestTrialsDiffer(t *testing.T) {
	for rank := range 16 {
		for i := range 4096 {
			for later := 1; later <= 8; later++ {
				if operand(7, rank, i) == operand(7+later, rank, i) {
					t.Fatalf("rank %d, element %d: trials 7 and %d have the same operand", rank, i, 7+later)
				}
			}
		}
	}
}
