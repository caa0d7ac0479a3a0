package main

import (
	"fmt"
	"slices"

	"ggmlvkcomm/vkimpl"
)

// gpuIndices are the GPUs as the loader counts them, each once though two
// drivers may show it.
func gpuIndices(all []vkimpl.PhysicalDevice) (indices []int) {
	var seen [][16]byte
	for i, d := range all {
		if d.Kind != "cpu" && d.Kind != "other" && !slices.Contains(seen, d.DeviceUUID) {
			indices, seen = append(indices, i), append(seen, d.DeviceUUID)
		}
	}
	return indices
}

// placement says on which device each rank is.
type placement struct {
	Devices []int `placeholder:"I" help:"One device a rank, as the Vulkan loader counts them (default: every GPU; without one the CPU's device twice)."`
	Ranks   int   `placeholder:"N" help:"N ranks on one device: the first of --devices, or the first GPU."`
}

// ranks resolves the placement. gpus is how many GPUs are wanted, 0 for all.
func (p *placement) ranks(all []vkimpl.PhysicalDevice, gpus int) ([]int, error) {
	for _, index := range p.Devices {
		if index < 0 || index >= len(all) {
			return nil, fmt.Errorf("there is no device %d, accepted: 0 to %d (see vkcomm doctor)", index, len(all)-1)
		}
	}
	found := gpuIndices(all)
	indices := p.Devices
	switch {
	case indices != nil && gpus > 0:
		return nil, fmt.Errorf("-g and --devices exclude each other")
	case indices == nil && gpus > len(found):
		return nil, fmt.Errorf("-g %d: this machine has %d GPUs; --ranks %d puts as many ranks on one device", gpus, len(found), gpus)
	case indices == nil && gpus > 0:
		indices = found[:gpus]
	case indices == nil:
		indices = found
	}
	if p.Ranks > 0 {
		first := 0
		if len(indices) > 0 {
			first = indices[0]
		}
		return slices.Repeat([]int{first}, p.Ranks), nil
	}
	if len(indices) == 0 {
		return []int{0, 0}, nil // the CPU's
	}
	return indices, nil
}
