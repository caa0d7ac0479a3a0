package plugin

import (
	"fmt"
	"math"
	"time"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/vkimpl"
)

// verifyFloats is how much of a tensor is compared at a time.
const verifyFloats = 1 << 20

// verifyTimeout: the host's graphs come first, and may take long.
const verifyTimeout = 5 * time.Minute

// verifier checks reductions for GGML_VK_COMM_CHECK: it reads the operands,
// lets the ranks reduce, reads the results, and compares them bit by bit with
// the butterfly sum on the CPU. It waits for the devices twice a reduction.
type verifier struct {
	ranks   *vkimpl.Ranks
	buffers []*vkimpl.Buffer
}

func newVerifier(ranks *vkimpl.Ranks) (*verifier, error) {
	v := &verifier{ranks: ranks}
	for r := range ranks.Devices {
		b, _, err := ranks.HostBuffer(r, verifyFloats)
		if err != nil {
			v.close()
			return nil, err
		}
		v.buffers = append(v.buffers, b)
	}
	return v, nil
}

func (v *verifier) close() {
	if v != nil {
		for _, b := range v.buffers {
			b.Close()
		}
	}
}

// read returns a copy of a rank's tensor.
func (v *verifier) read(rank int, from vkimpl.Binding, elements int64) ([]float32, error) {
	all := make([]float32, 0, elements)
	for at := int64(0); at < elements; at += verifyFloats {
		n := min(verifyFloats, elements-at)
		part := from
		part.Offset += 4 * uint64(at)
		if err := v.ranks.Read(rank, part, v.buffers[rank], n, verifyTimeout); err != nil {
			return nil, err
		}
		all = append(all, v.buffers[rank].Floats()[:n]...)
	}
	return all, nil
}

func (v *verifier) readAll(bindings []vkimpl.Binding, elements int64) ([][]float32, error) {
	var tensors [][]float32
	for r, b := range bindings {
		t, err := v.read(r, b, elements)
		if err != nil {
			return nil, fmt.Errorf("verification: %w", err)
		}
		tensors = append(tensors, t)
	}
	return tensors, nil
}

// reduceVerified is submit with both sides compared. A wrong sum ends the
// process: the host has no way to learn of it.
func (c *Comm) reduceVerified(program *vkimpl.Program) bool {
	bindings, s := c.bindings(), program.Schedule
	before, err := c.verify.readAll(bindings, s.Elements)
	if err != nil {
		return c.refuse(reasonPlan, err)
	}
	if !c.submit(program) {
		return false
	}
	after, err := c.verify.readAll(bindings, s.Elements)
	if err == nil {
		err = compareSums(before, after, s.ZeroRanks)
	}
	if err != nil {
		logf(levelError, "GGML_VK_COMM_CHECK: %s over %s ordering: %v", s.Algorithm, c.ranks.Kind(), err)
		c.ranks.Fatal("the check of a sum", 0)
	}
	return true
}

// compareSums checks that every rank holds the butterfly sum of before.
func compareSums(before, after [][]float32, zero uint64) error {
	operands := make([]float32, len(before))
	for i := range before[0] {
		for r := range before {
			operands[r] = before[r][i]
			if zero>>r&1 != 0 {
				operands[r] = 0
			}
		}
		want := allreduce.Butterfly(operands, func(a, b float32) float32 { return a + b })
		for r := range after {
			if got := after[r][i]; !sameSum(got, want) {
				return fmt.Errorf("rank %d has %v (%#08x) for element %d of %d, the sum is %v (%#08x)",
					r, got, math.Float32bits(got), i, len(before[0]), want, math.Float32bits(want))
			}
		}
	}
	return nil
}

// sameSum: equal bits, or what devices may do differently: the payload of a NaN,
// and a denormal result flushed to zero.
func sameSum(got, want float32) bool {
	if math.Float32bits(got) == math.Float32bits(want) || got != got && want != want {
		return true
	}
	const leastNormal = 0x1p-126
	return got == 0 && want != 0 && math.Abs(float64(want)) < leastNormal
}
