// Package allreduce turns one AllReduce (sum in place, over the ranks of one
// host) into a schedule: plain data that says which queue of which rank packs,
// copies, reduces and unpacks which region, and which timeline values it waits
// for and signals. It knows no Vulkan and starts no goroutine; an executor
// translates a Schedule, and nothing else, into command buffers.
//
// # Strategies
//
// With S the tensor's bytes on the wire and n the number of ranks:
//
//   - SingleShot: every rank writes its S bytes to its own staging, then every
//     rank reads all others and sums. One hop. For small tensors, where fixed
//     costs are all.
//
//   - Pipeline: the same traffic in chunks. A rank with a transfer queue
//     streams its slice out while its compute queue reduces the peers' chunks
//     as they land, so that both directions of its link are busy. For large
//     tensors and few ranks.
//
//   - TwoShot: rank c reduces slice c and publishes it, then all ranks read the
//     reduced slices. 2(n-1)/n S a rank and direction at most, two hops. For
//     large tensors and more than two or three ranks.
//
//   - Ring: reduce-scatter and all-gather along a ring, 2(n-1) hops, each rank
//     reading only its left neighbour. 2(n-1)/n S as well. For links on which
//     many readers of one rank's memory slow each other down.
//
//   - Relay: SingleShot as one kernel a rank that waits inside for what a host
//     thread brings it. For decode sizes, where even one semaphore is too much.
//
// The cost model (Predict, Crossovers) says where one overtakes another on a
// given Link.
//
// # Sums
//
// SingleShot, Pipeline and TwoShot associate as Butterfly does, over the ranks
// in order; Ring sums slice c along the chain c, c+1 ... c-1 (mod n). A zero
// rank contributes +0.0. With a 16-bit wire every operand is rounded to the
// wire before it is added, by its owner as well; TwoShot rounds the sum too,
// and Ring rounds every partial sum instead of the later operands. All ranks
// end with the same bits whatever the algorithm and the wire. Rounding is
// idempotent (see Wire.Round), and a tensor is cut only at multiples of
// F16Block, so that an element meets the same F16 block everywhere.
//
// # Why staging needs no wait between reductions
//
// A reduction runs in rounds; a round uses one half of every rank's staging and
// the halves alternate, also from one reduction to the next. Two things hold:
//
//  1. A rank's first signal of a reduction comes after all its reads of former
//     reductions: its compute queue is in order and every batch opens with a
//     full barrier. A transfer queue begins only after a compute signal of the
//     same reduction, and is idle when the compute queue ends the reduction.
//  2. When a rank completes a reduction whose last round is round k, all its
//     peers have begun round k or, where a round begins before the former one
//     is read, have signalled that round k-1 is read: all reads of its staging
//     in rounds before k are over, by the waits that led there.
//
// So the next reduction's first round, k+1, may overwrite the half of round k-1
// at once. Its second round overwrites the half of round k, and by then the
// rank has waited for every peer to begin round k+1, which (1) puts after the
// peer's reads of round k. Zero ranks take part in these waits: they write
// nothing, but they read. Between two zero ranks the wait is made only where the
// half that is due next holds what the waiting one wrote last (mustHaveBegun).
//
// Inside a reduction each builder either completes round k+1 before it writes
// round k+2 (SingleShot, TwoShot, Ring) or waits for explicit signals that the
// peers have read round k (Pipeline). Checker proves all of this for a given
// sequence of schedules, whatever their sizes and algorithms.
package allreduce
