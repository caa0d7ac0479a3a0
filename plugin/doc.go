// Package plugin is the glue between ggml and the collective: the C interposer
// with its registry of what ggml did, and the life of a communicator.
//
// The preloaded side, plain C, built into the shim and into the Go object:
//
//	interpose.c  ggml's calls that are watched
//	vkhooks.c    Vulkan's commands that are watched
//	registry.c   what was seen: devices, queues, buffers
//	loader.c     whether, when and how the Go object is loaded
//
// The Go side:
//
//	host.c       ggml's functions, tensors to (VkBuffer, offset), probing
//	config.go    the environment
//	comm.go      a communicator from init to free
//	transports.go which ordering and which algorithms it uses
//	reduce.go    a reduction, the hot path
//	select.go    which algorithm for which size
//	selftest.go  no transport is used that was not seen to work
//	verify.go    every reduction against a CPU reference, on request
//
// An AllReduce is refused, never failed, before its first submission; the host
// then reduces by itself. After it, a failure ends the process.
package plugin
