package vkimpl

import (
	"encoding/binary"
	"fmt"
)

// floatMode is an execution mode of SPIR-V's float controls.
type floatMode struct {
	capability, mode, width uint32
}

var (
	denormPreserve16 = floatMode{capability: 4464, mode: 4459, width: 16}
	denormPreserve32 = floatMode{capability: 4464, mode: 4459, width: 32}
	roundToEven16    = floatMode{capability: 4467, mode: 4462, width: 16}
)

// floatModes are the modes that kernels are built with. The first two are those
// of ggml's own kernels, float32 ones included (ggml_vk_create_pipeline_func):
// with either, NVIDIA's compiler keeps float32 denormals that it flushes
// otherwise, and a sum is to have the very bits of ggml's. Ranks with different
// drivers might differ from each other in it, which the third prevents where
// all of them can.
func (d *Device) floatModes() (modes []floatMode) {
	if d.limits.roundToEven16 {
		modes = append(modes, roundToEven16)
	}
	if d.limits.denormPreserve16 {
		modes = append(modes, denormPreserve16)
	}
	if d.keepDenormals {
		modes = append(modes, denormPreserve32)
	}
	return modes
}

const (
	spirvMagic       = 0x07230203
	spirvHeader      = 5
	opEntryPoint     = 15
	opExecutionMode  = 16
	opCapability     = 17
	spirvOpcodeMask  = 0xffff
	spirvLengthShift = 16
)

// withFloatModes returns the words of a SPIR-V module (1.4 or later, where float
// controls need no extension) with execution modes added to its entry point.
func withFloatModes(code []byte, modes []floatMode) ([]uint32, error) {
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	if len(words) < spirvHeader || words[0] != spirvMagic {
		return nil, fmt.Errorf("not a SPIR-V module: %d bytes", len(code))
	}
	var capabilities, executionModes []uint32
	added := map[uint32]bool{}
	for _, m := range modes {
		if !added[m.capability] {
			added[m.capability] = true
			capabilities = append(capabilities, 2<<spirvLengthShift|opCapability, m.capability)
		}
	}
	out := append(words[:spirvHeader:spirvHeader], capabilities...)
	for at := spirvHeader; at < len(words); {
		length := int(words[at] >> spirvLengthShift)
		if length == 0 || at+length > len(words) {
			return nil, fmt.Errorf("SPIR-V instruction at word %d runs past the end", at)
		}
		out = append(out, words[at:at+length]...)
		if words[at]&spirvOpcodeMask == opEntryPoint {
			for _, m := range modes {
				executionModes = append(executionModes, 4<<spirvLengthShift|opExecutionMode, words[at+2], m.mode, m.width)
			}
			out = append(out, executionModes...) // these kernels have one entry point
		}
		at += length
	}
	return out, nil
}
