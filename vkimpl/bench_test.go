package vkimpl

import (
	"fmt"
	"testing"

	"ggmlvkcomm/allreduce"
)

// How fast the ranks of this machine reach their staging, and how fast they
// reduce. Nothing is asserted about time; sums are checked before they are
// timed. Made to be carried to a machine without Go as well:
//
//	go test -c -o bench ./vkimpl
//	./bench -test.run '^$' -test.bench . -test.benchtime 50ms
//
// A benchmark's name selects: -test.bench 'AllReduce/order=native/algo=ring'.
// -test.count N takes the median of N, -test.short is a trial of the benchmarks
// themselves. The environment says on what they run:
//
//	VKCOMM_BENCH_DEVICES     one device a rank, as the loader counts them: 0,1
//	                         (default: every GPU; without one the CPU's device twice)
//	VKCOMM_BENCH_SIZES       tensor sizes in bytes: 4K,1M (default: 4K to 64M by factor 4)
//	VKCOMM_BENCH_CHUNK       bytes of a chunk (default: as the plugin would choose)
//	VKCOMM_BENCH_STAGING_MB  staging of a rank for AllReduce (default: 16, as the plugin)
//	VKCOMM_BENCH_LINK_MB     what one transfer of Link moves (default: 64)
//	VKCOMM_BENCH_TRANSFER    0: no transfer queue; alias: the compute queue plays one
//	VKCOMM_BENCH_JSON        file that gets one JSON object a line, appended

// BenchmarkLink measures one rank, and all of them at once, writing to and
// reading from imported host staging. GB/s are 10^9 bytes a second in each
// direction of each rank.
func BenchmarkLink(b *testing.B) {
	g := openBench(b)
	g.describe("link")
	l := g.openLink()
	defer l.close()
	for _, m := range l.movers() {
		b.Run(m.String(), func(b *testing.B) {
			t := l.bench(b, m)
			b.ReportMetric(gigabytes(l.bytes, t.median()), "GB/s")
		})
	}
	l.report()
}

// BenchmarkAllReduce measures reductions that are queued back to back, as a
// model's layers queue theirs: every ordering that the devices allow, every
// algorithm, wire and size.
func BenchmarkAllReduce(b *testing.B) {
	g := openBench(b)
	if g.world < 2 {
		b.Skip("needs two ranks: VKCOMM_BENCH_DEVICES=0,0 puts two on one device")
	}
	g.describe("allreduce")
	link := g.openLink()
	link.measure()
	link.close()
	g.openRanks(g.settings.staging, g.settings.largest())
	defer g.closeRanks()
	g.openOperands(g.settings.largest())
	for _, order := range g.orderings() {
		if !g.order(order) {
			continue
		}
		model := g.fit()
		for _, c := range g.cases(order) {
			b.Run(c.String(), func(b *testing.B) { g.bench(b, c) })
			g.finish(c, link.rate(), model)
		}
	}
	g.report(link.rate())
	g.reportModels()
}

// cases of one ordering, in the order of the table.
func (g *benchRig) cases(order string) (cases []*benchCase) {
	for _, algorithm := range allreduce.Algorithms() {
		for _, wire := range g.settings.wires {
			for _, bytes := range g.settings.sizes {
				cases = append(cases, &benchCase{order: order, algorithm: algorithm, wire: wire, bytes: bytes,
					chunk: g.chunkBytes(algorithm, wire, bytes)})
			}
		}
	}
	for _, bytes := range g.settings.sizes {
		if g.ranks.HasRelay() && bytes <= 4*allreduce.RelayElements {
			cases = append(cases, &benchCase{order: order, algorithm: allreduce.AlgorithmRelay, bytes: bytes})
		}
	}
	return cases
}

func (c *benchCase) String() string {
	return fmt.Sprintf("order=%s/algo=%s/wire=%s/bytes=%d", c.order, c.algorithm, c.wire, c.bytes)
}

// bench times b.N reductions. The framework raises b.N until the host's wait at
// the end no longer counts.
func (g *benchRig) bench(b *testing.B, c *benchCase) {
	if c.programs == nil {
		if err := g.prepare(c); err != nil {
			b.Skip(err) // the algorithm cannot be built for this size and staging
		}
		g.verify(b, c)
	}
	c.time.run(b, func() error { return g.submit(c) }, g.drain)
	algbw := gigabytes(c.bytes, c.time.median())
	b.ReportMetric(algbw, "alg-GB/s")
	b.ReportMetric(algbw*g.busFactor(), "bus-GB/s")
}

// busFactor turns algbw into busbw: what a rank must send and receive at least,
// as a multiple of the tensor.
func (g *benchRig) busFactor() float64 { return 2 * float64(g.world-1) / float64(g.world) }

// finish makes a case's row and gives back what it holds.
func (g *benchRig) finish(c *benchCase, link float64, model *costModel) {
	if len(c.time.seconds) > 0 {
		g.rows = append(g.rows, g.row(c, link, model))
	}
	for _, p := range c.programs {
		if p != nil {
			p.Close()
		}
	}
	c.programs = nil
}
