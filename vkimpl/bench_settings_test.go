package vkimpl

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ggmlvkcomm/allreduce"
)

// benchSettings is what VKCOMM_BENCH_* and -short ask for; see bench_test.go.
type benchSettings struct {
	devices       []int // nil: chosen by default
	sizes         []int64
	wires         []allreduce.Wire
	chunk         int64 // 0: as the plugin would
	staging, link int64 // bytes
	options       StandaloneOptions
	json          string
}

func readBenchSettings(b *testing.B) benchSettings {
	b.Helper()
	s := benchSettings{wires: allWires, staging: 16 << 20, link: 64 << 20, json: os.Getenv("VKCOMM_BENCH_JSON")}
	for bytes := int64(4 << 10); bytes <= 64<<20; bytes *= 4 {
		s.sizes = append(s.sizes, bytes)
	}
	if testing.Short() {
		s.sizes, s.wires = []int64{4 << 10, 256 << 10}, []allreduce.Wire{allreduce.F32, allreduce.F16}
		s.staging, s.link = 256<<10, 256<<10
	}
	if list := benchNumbers(b, "VKCOMM_BENCH_SIZES"); list != nil {
		s.sizes = list
	}
	for _, n := range benchNumbers(b, "VKCOMM_BENCH_DEVICES") {
		s.devices = append(s.devices, int(n))
	}
	for name, to := range map[string]*int64{"VKCOMM_BENCH_CHUNK": &s.chunk, "VKCOMM_BENCH_STAGING_MB": &s.staging, "VKCOMM_BENCH_LINK_MB": &s.link} {
		if list := benchNumbers(b, name); list != nil {
			*to = list[0]
			if strings.HasSuffix(name, "_MB") {
				*to <<= 20
			}
		}
	}
	switch v := os.Getenv("VKCOMM_BENCH_TRANSFER"); v {
	case "":
	case "0":
		s.options.NoTransferQueue = true
	case "alias":
		s.options.AliasTransferQueue = true
	default:
		b.Fatalf("VKCOMM_BENCH_TRANSFER=%q, accepted: 0, alias", v)
	}
	return s
}

func (s *benchSettings) largest() int64 { return slices.Max(s.sizes) }

// benchNumbers reads a list of numbers, with K and M for 2^10 and 2^20; nil
// when the variable is not set.
func benchNumbers(b *testing.B, name string) (list []int64) {
	b.Helper()
	text := os.Getenv(name)
	if text == "" {
		return nil
	}
	for _, item := range strings.Split(text, ",") {
		digits := strings.TrimRight(item, "KM")
		n, err := strconv.ParseInt(digits, 10, 32)
		switch item[len(digits):] {
		case "":
		case "K":
			n <<= 10
		case "M":
			n <<= 20
		default:
			b.Fatalf("%s=%q: %q is not a number, K or M", name, text, item)
		}
		if err != nil || n < 0 {
			b.Fatalf("%s=%q: %q is not a number", name, text, item)
		}
		list = append(list, n)
	}
	return list
}

// chunkBytes bounds a step as the plugin does.
func (g *benchRig) chunkBytes(algorithm string, wire allreduce.Wire, bytes int64) int64 {
	switch limit := g.ranks.ChunkBytes(); {
	case g.settings.chunk > 0:
		return min(limit, g.settings.chunk)
	case algorithm == allreduce.AlgorithmPipeline:
		return min(limit, allreduce.PipelineChunk(wire.Bytes(bytes/4)))
	default:
		return limit
	}
}
