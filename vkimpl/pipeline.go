package vkimpl

import (
	"embed"
	"encoding/binary"
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
	counts := []uint32{1, uint32(world), 1}
	d.setBuffers = uint32(world + 2)
	if need := world + 2; d.limits.maxStorageBuffers < need {
		return unsupported(d.rank, "binds %d storage buffers to a kernel, %d ranks need %d", d.limits.maxStorageBuffers, world, need)
	}
	var bindings []vk.DescriptorSetLayoutBinding
	for i, n := range counts {
		bindings = append(bindings, vk.DescriptorSetLayoutBinding{Binding: uint32(i), DescriptorCount: n,
			DescriptorType: vk.DescriptorTypeStorageBuffer, StageFlags: vk.ShaderStageFlags(vk.ShaderStageComputeBit)})
	}
	sets := vk.DescriptorSetLayoutCreateInfo{SType: vk.StructureTypeDescriptorSetLayoutCreateInfo,
		BindingCount: uint32(len(bindings)), PBindings: bindings}
	defer sets.Free()
	// Results go to variables of their own: cgo refuses the address of a field
	// whose structure holds Go pointers.
	var setLayout vk.DescriptorSetLayout
	if err := check("vkCreateDescriptorSetLayout", d.rank, vk.CreateDescriptorSetLayout(d.handle, &sets, nil, &setLayout)); err != nil {
		return err
	}
	d.setLayout = setLayout
	layout := vk.PipelineLayoutCreateInfo{SType: vk.StructureTypePipelineLayoutCreateInfo,
		SetLayoutCount: 1, PSetLayouts: []vk.DescriptorSetLayout{d.setLayout},
		PushConstantRangeCount: 1, PPushConstantRanges: []vk.PushConstantRange{{
			StageFlags: vk.ShaderStageFlags(vk.ShaderStageComputeBit), Size: pushBytes}}}
	defer layout.Free()
	var pipelineLayout vk.PipelineLayout
	err := check("vkCreatePipelineLayout", d.rank, vk.CreatePipelineLayout(d.handle, &layout, nil, &pipelineLayout))
	d.pipelineLayout = pipelineLayout
	return err
}

func (d *Device) module(name string) (vk.ShaderModule, error) {
	if m, ok := d.modules[name]; ok {
		return m, nil
	}
	code, err := spirv.ReadFile("shaders/" + name + ".spv")
	if err != nil {
		return vk.NullShaderModule, err
	}
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	info := vk.ShaderModuleCreateInfo{SType: vk.StructureTypeShaderModuleCreateInfo, CodeSize: uint64(len(code)), PCode: words}
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
	constants := [4]uint32{k.sources, k.own, k.peers, k.publish}
	special := vk.SpecializationInfo{DataSize: uint64(unsafe.Sizeof(constants)), PData: unsafe.Pointer(&constants)}
	if k.sources > 0 {
		for i := range constants {
			special.PMapEntries = append(special.PMapEntries, vk.SpecializationMapEntry{ConstantID: uint32(i), Offset: uint32(4 * i), Size: 4})
		}
		special.MapEntryCount = uint32(len(constants))
	}
	infos := []vk.ComputePipelineCreateInfo{{SType: vk.StructureTypeComputePipelineCreateInfo, Layout: d.pipelineLayout,
		Stage: vk.PipelineShaderStageCreateInfo{SType: vk.StructureTypePipelineShaderStageCreateInfo,
			Stage: vk.ShaderStageComputeBit, Module: module, PName: "main\x00",
			PSpecializationInfo: []vk.SpecializationInfo{special}}}}
	defer infos[0].Free()
	made := make([]vk.Pipeline, 1)
	if err := check("vkCreateComputePipelines", d.rank, vk.CreateComputePipelines(d.handle, vk.NullPipelineCache, 1, infos, nil, made)); err != nil {
		return vk.NullPipeline, err
	}
	d.pipelines[k] = made[0]
	return made[0], nil
}
