package main

// #include <stdlib.h>
// #define VKCOMM_NO_PROTOTYPES
// #include "../../ggml_comm.h"
import "C"

import (
	"fmt"
	"runtime"

	"github.com/alecthomas/kong"

	"ggmlvkcomm/vkimpl"
)

// Set by the linker: -X main.version=... -X main.commit=...
var (
	version = "0.1.0"
	commit  = "unknown"
)

const (
	pluginABI = int(C.VKCOMM_ABI_VERSION)
	// ggmlObjectBytes is struct ggml_object: two sizes, a pointer, a type, padding.
	ggmlObjectBytes = 32
	// ggmlTensorOverhead is what ggml_tensor_overhead() must return.
	ggmlTensorOverhead = ggmlObjectBytes + int(C.sizeof_struct_vkcomm_ggml_tensor)
)

func versionText() string {
	return fmt.Sprintf("vkcomm %s (commit %s)\nggml communicator ABI %d, tensor overhead %d bytes\nVulkan headers %s\n%s\n",
		version, commit, pluginABI, ggmlTensorOverhead, vkimpl.HeaderVersion(), runtime.Version())
}

type versionFlag bool

// BeforeReset prints the version before anything else is looked at.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	fmt.Fprint(app.Stdout, versionText())
	app.Exit(0)
	return nil
}
