package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// drmMemory is what the kernel says one device holds for this process, in bytes.
type drmMemory struct{ vram, gtt uint64 }

// drmUsage is drmMemory by PCI address. Drivers that report no memory, NVIDIA's
// among them, are not in it.
type drmUsage map[string]drmMemory

// readDRMUsage reads /proc/self/fdinfo, or what stands for it in a test. What
// cannot be read does not count.
func readDRMUsage(directory string) drmUsage {
	files, _ := filepath.Glob(filepath.Join(directory, "*"))
	usage, clients := drmUsage{}, map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // closed meanwhile
		}
		device, client, memory, ok := parseFdinfo(string(text))
		if !ok || clients[device+" "+client] { // a duplicate of a descriptor is the same client
			continue
		}
		clients[device+" "+client] = true
		sum := usage[device]
		sum.vram += memory.vram
		sum.gtt += memory.gtt
		usage[device] = sum
	}
	return usage
}

// parseFdinfo reads the text of one descriptor (Linux,
// Documentation/gpu/drm-usage-stats.rst). ok: it is a GPU's and tells of memory.
func parseFdinfo(text string) (device, client string, memory drmMemory, ok bool) {
	regions := map[string]regionBytes{}
	for _, line := range strings.Split(text, "\n") {
		key, value, found := strings.Cut(line, ":")
		if !found {
			continue
		}
		switch value = strings.TrimSpace(value); key {
		case "drm-pdev":
			device = value
		case "drm-client-id":
			client = value
		default:
			readRegion(regions, key, value)
		}
	}
	for name, r := range regions {
		switch {
		case strings.HasPrefix(name, "vram"), strings.HasPrefix(name, "local"):
			memory.vram += r.bytes
			ok = true
		case name == "gtt", strings.HasPrefix(name, "system"):
			memory.gtt += r.bytes
		}
	}
	return device, client, memory, ok && device != ""
}

// regionBytes is a region's size and how telling the key is that it comes from.
type regionBytes struct {
	bytes uint64
	rank  int
}

// regionKeys say the same, from the least telling to the most: what is allocated,
// wherever it lies now; amdgpu's name of old for what is there; what is there.
var regionKeys = []string{"drm-total-", "drm-memory-", "drm-resident-"}

func readRegion(regions map[string]regionBytes, key, value string) {
	for rank, prefix := range regionKeys {
		name, found := strings.CutPrefix(key, prefix)
		bytes, ok := parseSize(value)
		if found && ok && rank >= regions[name].rank {
			regions[name] = regionBytes{bytes, rank}
		}
	}
}

// parseSize reads "104960 KiB", "16 MiB" or "0".
func parseSize(text string) (uint64, bool) {
	number, unit, _ := strings.Cut(text, " ")
	n, err := strconv.ParseUint(number, 10, 53)
	shift, known := map[string]int{"": 0, "KiB": 10, "MiB": 20}[unit]
	return n << shift, err == nil && known
}

// settled says where the staging of so many ranks lies, bytes each, by what the
// devices hold more than before: growth of VRAM that is missing is memory that the
// exporter moved into system memory (GTT) so that its peers could have it. The
// GTT figure itself proves nothing, since amdgpu counts every import there.
func settled(before, after drmUsage, ranks int, bytes uint64) (where string, fallback bool) {
	if len(after) == 0 {
		return "not reported by the kernel", false
	}
	var grown drmMemory
	for device, now := range after {
		was := before[device]
		grown.vram += now.vram - min(was.vram, now.vram)
		grown.gtt += now.gtt - min(was.gtt, now.gtt)
	}
	all := uint64(ranks) * bytes
	text := fmt.Sprintf("VRAM +%d MiB, GTT +%d MiB for %d MiB of staging", grown.vram>>20, grown.gtt>>20, all>>20)
	if grown.vram < all-bytes/2 {
		return "in GTT rather than VRAM (" + text + ")", true
	}
	return "in VRAM (" + text + ")", false
}
