package vkimpl

// #include "create.h"
import "C"

import (
	"embed"
	"fmt"
	"runtime"
	"unsafe"

	vk "github.com/goki/vulkan"
)

//go:embed shaders/*.spv
var spirv embed.FS

// kernel is a pipeline: a shader, named as its file, and its specialization
// constants, in the order of reduce_*.comp.
type kernel struct {
	shader                       string
	sources, own, peers, publish uint32
}

// elementsPerGroup is what one workgroup of every kernel covers.
const elementsPerGroup = 256

// maxDispatch bounds the elements of one step: maxComputeWorkGroupCount is at
// least 65535.
const maxDispatch = 65535 * elementsPerGroup

func (d *Device) makeLayouts(world int) error {
	// The tensor, what is summed beside it (every rank's operand, when its own
	// lies in scratch), where the sum is published.
	counts := []C.uint32_t{1, C.uint32_t(world), 1}
	d.setBuffers = uint32(world + 2)
	if need := world + 2; d.limits.maxStorageBuffers < need {
		return unsupported(d.rank, "binds %d storage buffers to a kernel, %d ranks need %d", d.limits.maxStorageBuffers, world, need)
	}
	var setLayout C.VkDescriptorSetLayout
	result := C.vkcomm_create_set_layout(d.vk.device, d.getProcAddr(), C.uint32_t(len(counts)), unsafe.SliceData(counts), &setLayout)
	if err := check("vkCreateDescriptorSetLayout", d.rank, vk.Result(result)); err != nil {
		return err
	}
	d.setLayout = as[vk.DescriptorSetLayout](raw(setLayout))
	var pipelineLayout C.VkPipelineLayout
	result = C.vkcomm_create_pipeline_layout(d.vk.device, d.getProcAddr(), setLayout, C.uint32_t(pushBytes), &pipelineLayout)
	d.pipelineLayout = as[vk.PipelineLayout](raw(pipelineLayout))
	return check("vkCreatePipelineLayout", d.rank, vk.Result(result))
}

func (d *Device) getProcAddr() C.PFN_vkGetDeviceProcAddr {
	return as[C.PFN_vkGetDeviceProcAddr](d.adopted.GetDeviceProcAddr)
}

func (d *Device) module(name string) (vk.ShaderModule, error) {
	if m, ok := d.modules[name]; ok {
		return m, nil
	}
	code, err := spirv.ReadFile("shaders/" + name + ".spv")
	if err != nil {
		return vk.NullShaderModule, err
	}
	words, err := withFloatModes(code, d.floatModes())
	if err != nil {
		return vk.NullShaderModule, fmt.Errorf("kernel %s: %w", name, err)
	}
	var pin runtime.Pinner // goki/vulkan writes the address into C memory
	pin.Pin(unsafe.SliceData(words))
	defer pin.Unpin()
	info := vk.ShaderModuleCreateInfo{SType: vk.StructureTypeShaderModuleCreateInfo, CodeSize: uint64(4 * len(words)), PCode: words}
	defer info.Free()
	var m vk.ShaderModule
	if err := check("vkCreateShaderModule", d.rank, vk.CreateShaderModule(d.handle, &info, nil, &m)); err != nil {
		return m, err
	}
	d.modules[name] = m
	return m, nil
}

// pipeline returns the pipeline of a kernel, made when first asked for.
func (d *Device) pipeline(k kernel) (vk.Pipeline, error) {
	if p, ok := d.pipelines[k]; ok {
		return p, nil
	}
	module, err := d.module(k.shader)
	if err != nil {
		return vk.NullPipeline, err
	}
	constants := []C.uint32_t{C.uint32_t(k.sources), C.uint32_t(k.own), C.uint32_t(k.peers), C.uint32_t(k.publish)}
	if k.sources == 0 {
		constants = nil // pack has none
	}
	var made C.VkPipeline
	result := C.vkcomm_create_pipeline(d.vk.device, d.getProcAddr(), as[C.VkPipelineLayout](raw(d.pipelineLayout)),
		as[C.VkShaderModule](raw(module)), C.uint32_t(len(constants)), unsafe.SliceData(constants), &made)
	if err := check("vkCreateComputePipelines", d.rank, vk.Result(result)); err != nil {
		return vk.NullPipeline, err
	}
	d.pipelines[k] = as[vk.Pipeline](raw(made))
	return d.pipelines[k], nil
}
