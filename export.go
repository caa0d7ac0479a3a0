// Command ggmlvkcomm is a shared object (go build -buildmode=c-shared) that
// gives an unmodified llama.cpp's Vulkan backend an AllReduce. See README.md.
package main

// #define VKCOMM_NO_PROTOTYPES // cgo writes its own
// #include "ggml_comm.h"
import "C"

import (
	"unsafe"

	"ggmlvkcomm/plugin"
)

func main() {}

//export ggml_backend_comm_init
func ggml_backend_comm_init(backends **C.struct_ggml_backend, n C.size_t) (comm unsafe.Pointer) {
	defer func() {
		if cause := recover(); cause != nil {
			comm = plugin.InitPanicked(cause)
		}
	}()
	return plugin.Init(unsafe.Pointer(backends), int(n))
}

//export ggml_backend_comm_allreduce_tensor
func ggml_backend_comm_allreduce_tensor(comm unsafe.Pointer, tensors **C.struct_ggml_tensor) (done C.bool) {
	defer func() {
		if cause := recover(); cause != nil {
			done = C.bool(plugin.Panicked(comm, cause))
		}
	}()
	return C.bool(plugin.AllReduce(comm, unsafe.Pointer(tensors)))
}

//export ggml_backend_comm_free
func ggml_backend_comm_free(comm unsafe.Pointer) {
	defer func() {
		if cause := recover(); cause != nil {
			plugin.InitPanicked(cause)
		}
	}()
	plugin.Free(comm)
}
