package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// As amdgpu writes it (Linux 6.2, drivers/gpu/drm/amd/amdgpu/amdgpu_fdinfo.c,
// amdgpu_show_fdinfo), with the blank before a tab that is there.
const amdgpuFdinfo = `pos:	0
flags:	02100002
mnt_id:	26
ino:	509
pasid:	32771
drm-driver:	amdgpu
drm-pdev:	0000:03:00.0
drm-client-id:	23
drm-memory-vram:	104960 KiB
drm-memory-gtt: 	10240 KiB
drm-memory-cpu: 	0 KiB
amd-memory-visible-vram:	2048 KiB
amd-evicted-vram:	0 KiB
amd-requested-vram:	104960 KiB
amd-requested-gtt:	10240 KiB
drm-engine-gfx:	131072 ns
`

// From Linux 6.13 on amdgpu writes the regions of drm-usage-stats.rst too, with
// drm-memory-* of old beside them.
const amdgpuNewFdinfo = `drm-driver:	amdgpu
drm-client-id:	24
drm-pdev:	0000:04:00.0
drm-total-cpu:	0
drm-resident-cpu:	0
drm-total-gtt:	20 MiB
drm-resident-gtt:	16 MiB
drm-total-vram:	128 MiB
drm-shared-vram:	16 MiB
drm-resident-vram:	112 MiB
drm-memory-vram:	114688 KiB
drm-memory-gtt: 	16384 KiB
`

// Example of https://docs.kernel.org/gpu/xe/xe-drm-usage-stats.html.
const xeFdinfo = `pos:    0
flags:  0100002
mnt_id: 26
ino:    685
drm-driver:     xe
drm-client-id:  3
drm-pdev:       0000:03:00.0
drm-total-system:       0
drm-shared-system:      0
drm-active-system:      0
drm-resident-system:    0
drm-purgeable-system:   0
drm-total-gtt:  192 KiB
drm-shared-gtt: 0
drm-active-gtt: 0
drm-resident-gtt:       192 KiB
drm-total-vram0:        23992 KiB
drm-shared-vram0:       16 MiB
drm-active-vram0:       0
drm-resident-vram0:     23992 KiB
drm-total-stolen:       0
drm-cycles-ccs: 0
drm-total-cycles-ccs:   7655183225
drm-engine-capacity-ccs:        4
`

// i915 on a discrete GPU names its regions system0 and local0
// (drivers/gpu/drm/i915/i915_drm_client.c, show_meminfo; region names of
// intel_memory_region.c).
const i915Fdinfo = `drm-driver:	i915
drm-client-id:	7
drm-pdev:	0000:4d:00.0
drm-total-system0:	4 MiB
drm-shared-system0:	0
drm-resident-system0:	4 MiB
drm-total-local0:	48 MiB
drm-shared-local0:	16 MiB
drm-resident-local0:	32 MiB
drm-engine-render:	9288864723 ns
`

func TestParseFdinfo(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	for _, c := range []struct {
		name, text, device, client string
		memory                     drmMemory
		ok                         bool
	}{
		{"amdgpu", amdgpuFdinfo, "0000:03:00.0", "23", drmMemory{104960 * kib, 10240 * kib}, true},
		{"amdgpu, new", amdgpuNewFdinfo, "0000:04:00.0", "24", drmMemory{112 * mib, 16 * mib}, true},
		{"xe", xeFdinfo, "0000:03:00.0", "3", drmMemory{23992 * kib, 192 * kib}, true},
		{"i915", i915Fdinfo, "0000:4d:00.0", "7", drmMemory{32 * mib, 4 * mib}, true},
		{"a file", "pos:	0\nflags:	0100000\nmnt_id:	26\n", "", "", drmMemory{}, false},
		{"i915 on an integrated GPU", "drm-pdev:	0000:00:02.0\ndrm-client-id:	1\ndrm-resident-system0:	4 MiB\n", "0000:00:02.0", "1", drmMemory{0, 4 * mib}, false},
		{"no unit that we know", "drm-pdev:	a\ndrm-memory-vram:	5 GiB\n", "a", "", drmMemory{}, false},
	} {
		device, client, memory, ok := parseFdinfo(c.text)
		if device != c.device || client != c.client || memory != c.memory || ok != c.ok {
			t.Errorf("%s: %s %s %+v %v", c.name, device, client, memory, ok)
		}
	}
}

func FuzzParseFdinfo(f *testing.F) {
	for _, text := range []string{amdgpuFdinfo, amdgpuNewFdinfo, xeFdinfo, i915Fdinfo} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { parseFdinfo(text) })
}

func TestReadDRMUsageCountsAClientOnce(t *testing.T) {
	directory := t.TempDir()
	for name, text := range map[string]string{"1": "pos:	0\n", "5": amdgpuFdinfo, "6": amdgpuFdinfo,
		"7": strings.Replace(amdgpuFdinfo, "client-id:	23", "client-id:	99", 1), "8": i915Fdinfo} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := drmUsage{"0000:03:00.0": {2 * 104960 << 10, 2 * 10240 << 10}, "0000:4d:00.0": {32 << 20, 4 << 20}}
	if diff := cmp.Diff(want, readDRMUsage(directory), cmp.AllowUnexported(drmMemory{})); diff != "" {
		t.Error(diff)
	}
	if got := readDRMUsage(filepath.Join(directory, "none")); len(got) != 0 {
		t.Error(got)
	}
}

func TestSettled(t *testing.T) {
	const mib = 1 << 20
	before := drmUsage{"a": {100 * mib, 20 * mib}, "b": {100 * mib, 20 * mib}}
	for _, c := range []struct {
		name     string
		after    drmUsage
		want     string
		fallback bool
	}{
		{"both in VRAM; imports count as GTT", drmUsage{"a": {116 * mib, 36 * mib}, "b": {116 * mib, 36 * mib}}, "in VRAM (VRAM +32 MiB, GTT +32 MiB for 32 MiB", false},
		{"both moved", drmUsage{"a": {100 * mib, 52 * mib}, "b": {100 * mib, 52 * mib}}, "in GTT rather than VRAM (VRAM +0 MiB, GTT +64 MiB", true},
		{"one moved", drmUsage{"a": {116 * mib, 36 * mib}, "b": {99 * mib, 52 * mib}}, "in GTT rather than VRAM (VRAM +16 MiB", true},
		{"no figures", drmUsage{}, "not reported by the kernel", false},
	} {
		where, fallback := settled(before, c.after, 2, 16*mib)
		if !strings.HasPrefix(where, c.want) || fallback != c.fallback {
			t.Errorf("%s: %s, %v", c.name, where, fallback)
		}
	}
}
