// Package vkimpl is the Vulkan side of a communicator: it adopts the devices
// and queues that ggml created, imports staging, and turns schedules into
// command buffers and submissions.
//
// Cold calls (creation, enumeration) go through github.com/goki/vulkan. What it
// lacks, and the hot path, is C beside this file:
//
//	dispatch.c   commands resolved per device, timeline waits, external handles
//	create.c     creation calls that goki/vulkan cannot make safely
//	record.c     one batch of a schedule into a command buffer
//	executor.c   submission of a recorded schedule
//	proxy.c      the thread that carries progress between devices
//	watch.c      the thread that notices a device that is lost or stuck
//	standalone.c a host's side, for what runs without ggml
//
// A [Ranks] is one communicator's devices. A [Program] is a schedule bound to
// tensors and recorded; [Ranks.Submit] is the only call on the hot path, and it
// allocates nothing.
package vkimpl
