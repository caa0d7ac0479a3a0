package plugin

// #include "host.h"
import "C"

import (
	"errors"
	"runtime/debug"
	"unsafe"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/vkimpl"
)

// AllReduce sums the ranks' tensors, a ggml_tensor pointer array, in place.
// False: nothing was touched.
func AllReduce(handle, tensors unsafe.Pointer) bool {
	c := lookup(handle)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r := C.vkcomm_resolve(c.c, (**C.struct_ggml_tensor)(tensors)); {
	case c.broken:
		return c.refuse(reasonPanic, nil)
	case r == C.VKCOMM_EMPTY:
		return true
	case r != C.VKCOMM_ACCEPTED:
		return c.refuse(int(r), nil)
	}
	program, err := c.program()
	if err != nil {
		return c.refuse(reasonPlan, err)
	}
	if c.verify != nil {
		return c.reduceVerified(program)
	}
	return c.submit(program)
}

func (c *Comm) submit(program *vkimpl.Program) bool {
	c.submitting = true
	if err := c.ranks.Submit(program); err != nil {
		c.submitting = false
		return c.refuse(reasonSubmit, err)
	}
	c.half = nextHalf(c.half, program.Schedule)
	c.stats.count(program.Schedule)
	c.submitting = false
	return true
}

// nextHalf is the staging half that is due after a schedule. A relay has halves
// of its own, and leaves those of the staging as they are.
func nextHalf(half int, s *allreduce.Schedule) int {
	if s.Algorithm == allreduce.AlgorithmRelay {
		return half
	}
	return (half + s.Rounds) % 2
}

// program returns the recorded program for the operands just resolved.
func (c *Comm) program() (*vkimpl.Program, error) {
	k := &c.key
	k.elements, k.zero, k.half = int64(c.c.elements), uint32(c.c.zero_ranks), uint32(c.half)
	if c.choose.algorithm(4*k.elements) == allreduce.AlgorithmRelay {
		k.half = relayHalf
		if !c.ranks.RelayReady() {
			k.half = uint32(c.half) // with semaphores, this once
		}
	}
	for i := range int(c.c.world) {
		o := &c.c.operands[i]
		k.operands[i].generation, k.operands[i].offset = uint64(o.generation), uint64(o.offset)
	}
	if p := c.plans.get(k); p != nil {
		return p, nil
	}
	return c.record()
}

// record makes the program that the key asks for.
func (c *Comm) record() (*vkimpl.Program, error) {
	if c.plans.full() {
		if !idle(c.ranks, freeTimeout) {
			return nil, errors.New("the ranks' queues do not come to rest")
		}
		c.plans.evict()
	}
	schedule, err := c.build()
	if err != nil {
		return nil, err
	}
	program, err := c.ranks.Program(schedule, c.bindings())
	if err != nil {
		return nil, err
	}
	c.plans.put(&c.key, program)
	if c.config.Stats {
		c.stats.recorded()
	}
	return program, nil
}

// params describes a reduction to a builder.
func params(ranks *vkimpl.Ranks, choose *selection, algorithm string, elements int64, zero uint64, half int) allreduce.Params {
	bytes := 4 * elements
	return allreduce.Params{
		World: len(ranks.Devices), Elements: elements, Wire: choose.wireFor(bytes), ZeroRanks: zero,
		Half: half, HalfBytes: ranks.HalfBytes(), ChunkBytes: choose.chunkBytes(algorithm, bytes, ranks.ChunkBytes()),
		TransferQueue: transferQueues(ranks)}
}

// build makes the schedule that the key asks for. Staging too small for an
// algorithm with a slot a rank is not too small for single-shot.
func (c *Comm) build() (*allreduce.Schedule, error) {
	k := &c.key
	algorithm := c.choose.algorithm(4 * k.elements)
	if algorithm == allreduce.AlgorithmRelay && k.half != relayHalf {
		algorithm = allreduce.AlgorithmSingleShot
	}
	schedule, err := allreduce.Build(algorithm, params(c.ranks, &c.choose, algorithm, k.elements, uint64(k.zero), c.half))
	if err != nil {
		algorithm = allreduce.AlgorithmSingleShot
		schedule, err = allreduce.Build(algorithm, params(c.ranks, &c.choose, algorithm, k.elements, uint64(k.zero), c.half))
	}
	return schedule, err
}

func (c *Comm) bindings() []vkimpl.Binding {
	bindings := make([]vkimpl.Binding, c.c.world)
	for i := range bindings {
		o := &c.c.operands[i]
		bindings[i] = vkimpl.Binding{Buffer: uintptr(unsafe.Pointer(o.buffer)), Offset: uint64(o.offset), Size: uint64(o.size)}
	}
	return bindings
}

// refuse counts a reduction that the host is to do, and says so the first time
// that a reason occurs.
func (c *Comm) refuse(reason int, err error) bool {
	if c.stats.refused[reason]++; c.stats.refused[reason] == 1 {
		detail := ""
		if err != nil {
			detail = ": " + err.Error()
		}
		logf(levelWarn, "a reduction is left to llama.cpp, %s%s (logged once)", textOf(reason), detail)
	}
	return false
}

// Panicked takes note of a panic in AllReduce and returns what to answer.
func Panicked(handle unsafe.Pointer, cause any) bool {
	c := lookup(handle)
	logf(levelError, "internal error: %v\n%s", cause, debug.Stack())
	if c.submitting {
		c.ranks.Fatal("an internal error occurred and the AllReduce", 0)
	}
	c.broken = true
	return false
}
