package allreduce

import (
	"fmt"
	"slices"
)

// expr names a node of an exprTable. Nodes are hash-consed: two expressions are
// the same tree exactly if their numbers are equal. An expression stands for
// the value at one element; that operands meet at the same element is checked
// where they are read.
type expr int32

type exprOp uint8

const (
	exprZero  exprOp = iota // +0.0
	exprLeaf                // the operand of rank a
	exprStale               // whatever the tensor of zero rank a holds
	exprAdd                 // a + b in float32
	exprRound               // a as a peer decodes it from the wire
)

type exprNode struct {
	op   exprOp
	a, b expr
}

// exprTable interns expressions.
type exprTable struct {
	nodes []exprNode
	index map[exprNode]expr
	// The last butterfly and its sum: all ranks ask for the same one.
	srcs []expr
	sum  expr
}

func newExprTable() *exprTable { return &exprTable{index: map[exprNode]expr{}} }

func (t *exprTable) intern(n exprNode) expr {
	e, ok := t.index[n]
	if !ok {
		e = expr(len(t.nodes))
		t.nodes = append(t.nodes, n)
		t.index[n] = e
	}
	return e
}

func (t *exprTable) zero() expr          { return t.intern(exprNode{op: exprZero}) }
func (t *exprTable) leaf(rank int) expr  { return t.intern(exprNode{op: exprLeaf, a: expr(rank)}) }
func (t *exprTable) stale(rank int) expr { return t.intern(exprNode{op: exprStale, a: expr(rank)}) }
func (t *exprTable) add(a, b expr) expr  { return t.intern(exprNode{exprAdd, a, b}) }
func (t *exprTable) initial(s *Schedule, rank int) expr {
	if s.ZeroRanks>>uint(rank)&1 != 0 {
		return t.stale(rank)
	}
	return t.leaf(rank)
}

// round is e after the wire: e itself for F32, for +0.0 and for what is rounded
// already.
func (t *exprTable) round(w Wire, e expr) expr {
	if op := t.nodes[e].op; w == F32 || op == exprZero || op == exprRound {
		return e
	}
	return t.intern(exprNode{op: exprRound, a: e})
}

// butterfly sums srcs, which it leaves alone.
func (t *exprTable) butterfly(srcs []expr) expr {
	if !slices.Equal(srcs, t.srcs) {
		t.srcs = slices.Clone(srcs)
		t.sum = Butterfly(slices.Clone(srcs), t.add)
	}
	return t.sum
}

// documented lists the expressions that an element may end as: one, or for the
// ring one for each rank that its chain can begin at.
func (t *exprTable) documented(s *Schedule) ([]expr, error) {
	operand := func(rank int) expr {
		if s.ZeroRanks>>uint(rank)&1 != 0 {
			return t.zero()
		}
		return t.leaf(rank)
	}
	if s.Algorithm == AlgorithmRing {
		chains := make([]expr, s.World)
		for c := range chains {
			e := t.round(s.Wire, operand(c))
			for i := 1; i < s.World; i++ {
				e = t.round(s.Wire, t.add(e, operand((c+i)%s.World)))
			}
			chains[c] = e
		}
		return chains, nil
	}
	v := make([]expr, s.World)
	for rank := range v {
		v[rank] = t.round(s.Wire, operand(rank))
	}
	sum := Butterfly(v, t.add)
	switch s.Algorithm {
	case AlgorithmSingleShot, AlgorithmPipeline, AlgorithmRelay:
		return []expr{sum}, nil
	case AlgorithmTwoShot:
		return []expr{t.round(s.Wire, sum)}, nil
	}
	return nil, fmt.Errorf("no sum is documented for algorithm %q", s.Algorithm)
}

// text writes e for an error message, cut off where it gets long.
func (t *exprTable) text(e expr) string {
	const enough = 160
	var out []byte
	var write func(e expr)
	write = func(e expr) {
		if len(out) > enough {
			return
		}
		switch n := t.nodes[e]; n.op {
		case exprZero:
			out = append(out, '0')
		case exprLeaf:
			out = fmt.Appendf(out, "x%d", n.a)
		case exprStale:
			out = fmt.Appendf(out, "stale%d", n.a)
		case exprRound:
			out = append(out, "round("...)
			write(n.a)
			out = append(out, ')')
		case exprAdd:
			out = append(out, '(')
			write(n.a)
			out = append(out, '+')
			write(n.b)
			out = append(out, ')')
		}
	}
	write(e)
	if len(out) > enough {
		out = append(out[:enough], "..."...)
	}
	return string(out)
}

// run is the expression of elements lo to hi of a tensor.
type run struct {
	lo, hi int64
	e      expr
}

// appendRun adds r to runs, joined to the last one where it continues it.
func appendRun(runs []run, r run) []run {
	if n := len(runs); n > 0 && runs[n-1].e == r.e && runs[n-1].hi == r.lo {
		runs[n-1].hi = r.hi
		return runs
	}
	return append(runs, r)
}

// combine evaluates f over operands that all cover elements lo to hi, once for
// each stretch on which none of them changes.
func combine(operands [][]run, lo, hi int64, f func([]expr) expr) []run {
	var out []run
	at := make([]int, len(operands))
	values := make([]expr, len(operands))
	for lo < hi {
		end := hi
		for i, runs := range operands {
			if runs[at[i]].hi <= lo {
				at[i]++
			}
			values[i] = runs[at[i]].e
			end = min(end, runs[at[i]].hi)
		}
		out = appendRun(out, run{lo, end, f(values)})
		lo = end
	}
	return out
}
