package main

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <stdlib.h>
//
// static size_t call_size(void *f) { return ((size_t (*)(void)) f)(); }
// static const char *call_text(void *f) { return ((const char *(*)(void)) f)(); }
import "C"

import (
	"encoding/json"
	"errors"
	"unsafe"
)

// probeGgmlCmd is askGgml's other process.
type probeGgmlCmd struct {
	Library string `arg:""`
}

// Run prints a ggmlAnswer.
func (c *probeGgmlCmd) Run(o *output) error {
	path := C.CString(c.Library)
	defer C.free(unsafe.Pointer(path))
	library := C.dlopen(path, C.RTLD_NOW|C.RTLD_LOCAL)
	if library == nil {
		return errors.New(C.GoString(C.dlerror()))
	}
	symbol := func(name string) unsafe.Pointer {
		text := C.CString(name)
		defer C.free(unsafe.Pointer(text))
		return C.dlsym(library, text)
	}
	var a ggmlAnswer
	if f := symbol("ggml_tensor_overhead"); f != nil {
		a.Overhead = int(C.call_size(f))
	} else {
		a.Error = "it has no ggml_tensor_overhead"
	}
	if f := symbol("ggml_version"); f != nil {
		a.Version = C.GoString(C.call_text(f))
	}
	if f := symbol("ggml_commit"); f != nil {
		a.Commit = C.GoString(C.call_text(f))
	}
	return json.NewEncoder(o.out).Encode(a)
}
