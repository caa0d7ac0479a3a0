package plugin

import (
	"slices"

	"ggmlvkcomm/vkimpl"
)

// maxPlans bounds the programs that a communicator keeps. Decode cycles
// through 2-3 bindings a shape, each once per staging half; a server's batches
// add a handful of shapes.
const maxPlans = 128

// planKey identifies what a recorded program depends on. Generations are never
// reused, unlike the addresses that ggml frees and allocates again.
type planKey struct {
	elements int64
	zero     uint32
	half     uint32
	operands [maxRanks]struct{ generation, offset uint64 }
}

// relayHalf stands for the halves of the relay, which its kernels keep count of.
const relayHalf = 2

type plan struct {
	program  *vkimpl.Program
	lastUsed uint64
}

// plans is a cache of programs, least recently used out first.
type plans struct {
	entries map[planKey]*plan
	clock   uint64
	misses  uint64
}

func (p *plans) get(key *planKey) *vkimpl.Program {
	e := p.entries[*key]
	if e == nil {
		return nil
	}
	p.clock++
	e.lastUsed = p.clock
	return e.program
}

// full says that put needs an eviction first.
func (p *plans) full() bool { return len(p.entries) >= maxPlans }

func (p *plans) put(key *planKey, program *vkimpl.Program) {
	if p.entries == nil {
		p.entries = make(map[planKey]*plan, maxPlans)
	}
	p.clock++
	p.misses++
	p.entries[*key] = &plan{program: program, lastUsed: p.clock}
}

// evict closes the older half of the programs, none of which may be pending:
// half, so that the wait for that is paid once for many recordings.
func (p *plans) evict() {
	uses := make([]uint64, 0, len(p.entries))
	for _, e := range p.entries {
		uses = append(uses, e.lastUsed)
	}
	slices.Sort(uses)
	for key, e := range p.entries {
		if e.lastUsed <= uses[len(uses)/2] {
			e.program.Close()
			delete(p.entries, key)
		}
	}
}

func (p *plans) close() {
	for key, e := range p.entries {
		e.program.Close()
		delete(p.entries, key)
	}
}
