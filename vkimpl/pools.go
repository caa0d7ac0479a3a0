package vkimpl

// #include "create.h"
import "C"

import (
	"runtime"
	"unsafe"

	vk "github.com/goki/vulkan"

	"ggmlvkcomm/allreduce"
)

// setsPerPool is how many descriptor sets are made at once. Sets of all
// programs have one layout, so that a set given back fits whoever comes next.
const setsPerPool = 64

func (d *Device) makeCommandPools() error {
	for queue := range d.queues() {
		info := vk.CommandPoolCreateInfo{SType: vk.StructureTypeCommandPoolCreateInfo, QueueFamilyIndex: d.family(allreduce.Queue(queue)),
			Flags: vk.CommandPoolCreateFlags(vk.CommandPoolCreateResetCommandBufferBit)}
		var pool vk.CommandPool
		err := check("vkCreateCommandPool", d.rank, vk.CreateCommandPool(d.handle, &info, nil, &pool))
		info.Free()
		if err != nil {
			return err
		}
		d.commandPools[queue] = pool
	}
	return nil
}

// takeCommands returns a command buffer for a queue that is not in use.
func (d *Device) takeCommands(queue allreduce.Queue) (vk.CommandBuffer, error) {
	free := &d.freeCommands[queue]
	if d.commandPools[queue] == vk.NullCommandPool {
		return nil, unsupported(d.rank, "has no %s queue of its own", queue)
	}
	if len(*free) == 0 {
		const n = 16
		info := vk.CommandBufferAllocateInfo{SType: vk.StructureTypeCommandBufferAllocateInfo, CommandPool: d.commandPools[queue],
			Level: vk.CommandBufferLevelPrimary, CommandBufferCount: n}
		defer info.Free()
		made := make([]vk.CommandBuffer, n)
		if err := check("vkAllocateCommandBuffers", d.rank, vk.AllocateCommandBuffers(d.handle, &info, made)); err != nil {
			return nil, err
		}
		*free = made
	}
	last := len(*free) - 1
	c := (*free)[last]
	*free = (*free)[:last]
	return c, nil
}

// takeSet returns a descriptor set that is not in use.
func (d *Device) takeSet() (vk.DescriptorSet, error) {
	if len(d.freeSets) == 0 {
		if err := d.makeSets(); err != nil {
			return vk.NullDescriptorSet, err
		}
	}
	last := len(d.freeSets) - 1
	s := d.freeSets[last]
	d.freeSets = d.freeSets[:last]
	return s, nil
}

func (d *Device) makeSets() error {
	var made C.VkDescriptorPool
	result := C.vkcomm_create_set_pool(d.vk.device, d.getProcAddr(), setsPerPool, C.uint32_t(setsPerPool*d.setBuffers), &made)
	if err := check("vkCreateDescriptorPool", d.rank, vk.Result(result)); err != nil {
		return err
	}
	pool := as[vk.DescriptorPool](raw(made))
	d.setPools = append(d.setPools, pool)
	layouts := make([]vk.DescriptorSetLayout, setsPerPool)
	for i := range layouts {
		layouts[i] = d.setLayout
	}
	var pin runtime.Pinner // goki/vulkan writes the address into C memory
	pin.Pin(unsafe.SliceData(layouts))
	defer pin.Unpin()
	sets := vk.DescriptorSetAllocateInfo{SType: vk.StructureTypeDescriptorSetAllocateInfo, DescriptorPool: pool,
		DescriptorSetCount: setsPerPool, PSetLayouts: layouts}
	defer sets.Free()
	allocated := make([]vk.DescriptorSet, setsPerPool)
	if err := check("vkAllocateDescriptorSets", d.rank, vk.AllocateDescriptorSets(d.handle, &sets, &allocated[0])); err != nil {
		return err
	}
	d.freeSets = append(d.freeSets, allocated...)
	return nil
}
