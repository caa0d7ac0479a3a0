package allreduce

import (
	"fmt"
	"math/bits"
)

// MaxWorld is the largest number of ranks that a reduce step can sum: one
// storage buffer per rank is bound to its kernel, and 16 is what every desktop
// driver offers per stage (lavapipe 32, RADV, ANV and NVIDIA far more).
const MaxWorld = 16

// maskBits is the largest world size that a schedule can be built, checked and
// simulated for: one bit of a rank mask each.
const maskBits = 64

// Bounds that keep every sum of offsets and sizes far from overflow.
const (
	maxElements  = 1 << 40
	maxHalfBytes = 1 << 40
)

// Queue is a queue of a rank's device. Batches on one queue run in order.
type Queue uint8

const (
	Compute  Queue = iota // ggml's own compute queue
	Transfer              // a distinct copy queue, where the device has one
)

func (q Queue) String() string {
	if q == Transfer {
		return "transfer"
	}
	return "compute"
}

// Space is the memory that a Region lies in.
type Space uint8

const (
	// Tensor is the rank's operand and result, float32, reduced in place.
	Tensor Space = iota
	// Staging is written by its rank alone and read by every rank; it holds
	// elements in the schedule's wire type.
	Staging
	// Scratch is device-local memory of one rank, read and written by it
	// alone, in the wire type. It is what a transfer queue copies from, and it
	// is laid out as Staging is: two halves of HalfBytes, used in turn.
	Scratch
	// Zero is a source that yields +0.0: the contribution of a rank whose
	// tensor carries no data. It is added, never skipped: -0 + +0 = +0.
	Zero
)

// Region names Count elements of the step that refers to it.
type Region struct {
	Space Space
	Rank  int
	// Offset is in elements for Tensor, in bytes for Staging and Scratch
	// (a multiple of OffsetAlign there), and unused for Zero.
	Offset int64
}

// OffsetAlign is the alignment of Staging and Scratch offsets, in bytes: the
// largest minStorageBufferOffsetAlignment that the specification allows.
const OffsetAlign = 256

// Op is what a step does. Steps of one batch are independent of each other:
// none touches memory that another one writes, so that an executor may run
// them in any order and needs no barrier between them.
type Op uint8

const (
	// Pack encodes Srcs[0] (own Tensor) into Dst (own Staging or Scratch).
	// With a 16-bit wire it also rounds the tensor in place, so that the
	// owner goes on with the very value that its peers read.
	Pack Op = iota
	// Copy moves the encoded bytes of Srcs[0] to Dst, between Staging and
	// Scratch. The only step that a Transfer queue can run, beside Pack and
	// Unpack with an F32 wire, which are plain copies.
	Copy
	// Unpack decodes Srcs[0] (Staging or Scratch) into Dst (own Tensor).
	Unpack
	// Reduce sums Srcs in butterfly order (see Butterfly) in float32 into
	// Dst (own Tensor). Sources are own Tensor (at Dst's very offset),
	// Staging, Scratch or Zero; a single source is moved as it is. With
	// Publish it also encodes the sum into that region of own Staging or
	// Scratch, and, with a 16-bit wire, rounds Dst alike.
	Reduce
)

func (o Op) String() string {
	return [...]string{"pack", "copy", "unpack", "reduce"}[o]
}

// Step is one operation on Count elements.
type Step struct {
	Op      Op
	Count   int64
	Dst     Region
	Srcs    []Region
	Publish *Region // Reduce only
}

// Point is a value of one rank's timeline for one queue, relative to the value
// that the timeline had when the reduction began: 1 is the first value that
// the schedule signals, 0 stands for everything that earlier reductions
// signalled.
type Point struct {
	Rank  int
	Queue Queue
	Value int64
}

// Hazard says why a wait exists.
type Hazard uint8

const (
	RAW Hazard = iota // the batch reads what the awaited batch wrote
	WAR               // the batch overwrites what the awaited batch read
)

// Wait is a Point that must be reached before any step of a batch starts.
type Wait struct {
	Point
	Hazard Hazard
}

// Batch is what one rank's queue runs between two synchronisations. It opens
// and closes with a full memory barrier, so that it is ordered with whatever
// the same queue ran before and runs after.
type Batch struct {
	Rank   int
	Queue  Queue
	Waits  []Wait
	Steps  []Step
	Signal int64 // value signalled when all steps are complete; 0: none
}

// Schedule is one AllReduce as data. Batches stand in submission order: a wait
// refers only to a Signal of an earlier batch, so the order itself proves that
// no queue waits for work that is not yet submitted.
type Schedule struct {
	Algorithm string
	World     int
	Elements  int64
	Wire      Wire
	ZeroRanks uint64 // as in Params
	Half      int    // staging half of the first round
	HalfBytes int64  // as in Params
	Batches   []Batch
	// Signals is how far the schedule moves each timeline, [rank][queue].
	Signals [][2]int64
	// Rounds is how many staging halves the schedule used, in turn, from
	// Params.Half on: the next reduction starts at (Half+Rounds)%2.
	Rounds int
}

// Params describes one reduction to a builder.
type Params struct {
	World    int
	Elements int64
	Wire     Wire
	// ZeroRanks has bit r set when rank r contributes +0.0 whatever its
	// tensor holds. It still receives the sum.
	ZeroRanks uint64
	// Half is the staging half that the first round uses, 0 or 1.
	Half int
	// HalfBytes is the size of one half of a rank's staging, a multiple of
	// OffsetAlign. Half h starts at byte h*HalfBytes.
	HalfBytes int64
	// ChunkBytes bounds what one step moves, 0 for no bound of its own.
	ChunkBytes int64
	// TransferQueue has bit r set when rank r has a distinct transfer queue.
	TransferQueue uint64
}

// Zero reports whether rank r contributes nothing.
func (p *Params) Zero(r int) bool { return p.ZeroRanks>>uint(r)&1 != 0 }

// Check reports the first thing in p that no builder can work with.
func (p *Params) Check() error {
	switch {
	case p.World < 2 || p.World > maskBits:
		return fmt.Errorf("allreduce: world size %d, need 2 to %d", p.World, maskBits)
	case p.Wire > BF16:
		return fmt.Errorf("allreduce: unknown wire type %d", p.Wire)
	case p.Elements < 1 || p.Elements > maxElements:
		return fmt.Errorf("allreduce: %d elements, need 1 to %d", p.Elements, int64(maxElements))
	case p.Half != 0 && p.Half != 1:
		return fmt.Errorf("allreduce: staging half %d, need 0 or 1", p.Half)
	case p.HalfBytes < OffsetAlign || p.HalfBytes%OffsetAlign != 0 || p.HalfBytes > maxHalfBytes:
		return fmt.Errorf("allreduce: staging half of %d bytes, need a multiple of %d", p.HalfBytes, OffsetAlign)
	case p.ChunkBytes < 0:
		return fmt.Errorf("allreduce: chunk of %d bytes", p.ChunkBytes)
	case (p.ZeroRanks|p.TransferQueue)>>uint(p.World) != 0: // a shift by 64 gives 0
		return fmt.Errorf("allreduce: rank mask names a rank beyond world size %d", p.World)
	}
	return nil
}

// Butterfly sums v as the meta backend of llama.cpp does (allreduce_fallback
// in ggml-backend-meta.cpp): with p the largest power of two <= len(v), v[j]
// for j >= p is added into v[j-p], then pairs at distance p/2, p/4 ... 1.
// add(a, b) returns a+b; v is overwritten.
func Butterfly[T any](v []T, add func(a, b T) T) T {
	p := 1 << (bits.Len(uint(len(v))) - 1)
	for j := p; j < len(v); j++ {
		v[j-p] = add(v[j-p], v[j])
	}
	for d := p / 2; d >= 1; d /= 2 {
		for j := 0; j < d; j++ {
			v[j] = add(v[j], v[j+d])
		}
	}
	return v[0]
}
