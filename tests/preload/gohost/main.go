// Command gohost is a host written in Go: it loads ggml as such programs do,
// into no global scope, and asks the Vulkan registry for the communicator.
//
//	LD_PRELOAD=SHIM gohost DIRECTORY
package main

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *load(const char *directory, const char *name) {
	char path[4096];
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

// How many of the three names are answered; negative: ggml cannot be asked.
static int ask(const char *directory) {
	static const char *const names[] = { "ggml_backend_comm_init", "ggml_backend_comm_allreduce_tensor", "ggml_backend_comm_free" };
	void *base = load(directory, "libggml-base.so"), *vulkan = load(directory, "libggml-vulkan.so");
	void *(*init)(void) = vulkan ? dlsym(vulkan, "ggml_backend_init") : NULL;
	void *(*get)(void *, const char *) = dlsym(RTLD_DEFAULT, "ggml_backend_reg_get_proc_address"); // the preloaded one
	void *registry = init ? init() : NULL;
	int answered = 0;
	if (!base || !registry || !get) {
		return -1;
	}
	for (int i = 0; i < 3; i++) {
		answered += get(registry, names[i]) != NULL;
	}
	return answered;
}
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gohost DIRECTORY")
		os.Exit(2)
	}
	directory := C.CString(os.Args[1])
	defer C.free(unsafe.Pointer(directory))
	answered := C.ask(directory)
	if answered < 0 {
		fmt.Fprintf(os.Stderr, "gohost: no Vulkan backend in %s, or nothing preloaded\n", os.Args[1])
		os.Exit(1)
	}
	fmt.Printf("answered %d of 3\n", answered)
}
