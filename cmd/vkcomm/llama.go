package main

import (
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// llamaReport is whether and why a llama.cpp build can be hooked.
type llamaReport struct {
	Path      string            `json:"path"`
	Base      string            `json:"ggmlBase,omitempty"`
	Vulkan    string            `json:"ggmlVulkan,omitempty"`
	Hooks     map[string]string `json:"hooks"` // interposed function: plt, local or none
	Interface bool              `json:"communicatorInterface"`
	Ggml      *ggmlAnswer       `json:"ggml,omitempty"`
	Hookable  bool              `json:"hookable"`

	findings []finding
}

// hooked are the functions that the shim stands in front of, by the library
// that calls them (build/exports.map).
var hooked = []struct {
	library  string // of those that calls it
	function string
}{
	{"ggml-base", lookup},
	{"ggml-base", "ggml_backend_buft_alloc_buffer"},
	{"ggml-base", "ggml_backend_buffer_free"},
	{"ggml-base", "ggml_backend_synchronize"},
	{"ggml-vulkan", "vkGetInstanceProcAddr"},
}

const (
	commInterface = "ggml_backend_comm_init"            // what a host with communicators asks for
	lookup        = "ggml_backend_reg_get_proc_address" // and of what
)

func (r *llamaReport) problem(what, do string) {
	r.findings = append(r.findings, finding{"problem", "llama.cpp: " + what, do})
}

func inspectLlama(path string) *llamaReport {
	r := &llamaReport{Path: path, Hooks: map[string]string{}}
	info, err := os.Stat(path)
	if err != nil {
		if found, lookErr := exec.LookPath(path); lookErr == nil {
			path = found
			info, err = os.Stat(path)
		}
	}
	if err != nil {
		r.problem(err.Error(), "give a program of llama.cpp, or the directory of its libraries")
		return r
	}
	if !info.IsDir() {
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			path = resolved
		}
		if !r.program(path) {
			return r
		}
	}
	dirs := libraryDirs(path, info.IsDir())
	r.Base, r.Vulkan = findShared(dirs, "ggml-base"), findShared(dirs, "ggml-vulkan")
	switch {
	case r.Base == "" && info.IsDir() && r.static(path):
	case r.Base == "":
		r.problem("no libggml-base.so in "+strings.Join(dirs, ", "), "name the directory with the libraries; a static build cannot be hooked: build with -DBUILD_SHARED_LIBS=ON")
	case r.Vulkan == "":
		r.problem("no libggml-vulkan.so beside "+r.Base, "build with -DGGML_VULKAN=ON, or take the Vulkan release")
	}
	if r.Base != "" {
		r.libraries()
	}
	r.Hookable = len(r.findings) == 0
	return r
}

// program looks at an executable; false: its libraries need no look any more.
func (r *llamaReport) program(path string) bool {
	if err := preloadable(path); err != nil {
		r.problem(err.Error(), "run a copy without set-id bits; of a static build only a rebuild with -DBUILD_SHARED_LIBS=ON helps")
		return false
	}
	f, err := elf.Open(path)
	if err != nil {
		return true // a script: the libraries beside it count
	}
	defer f.Close()
	if needed, _ := f.ImportedLibraries(); slices.ContainsFunc(needed, func(n string) bool { return strings.HasPrefix(n, "libggml") || strings.HasPrefix(n, "libllama") }) {
		return true
	}
	if staticGgml(f) {
		r.problem(path+" has ggml linked in statically: its calls pass no PLT, and nothing can stand in front of them", "build with -DBUILD_SHARED_LIBS=ON, as the official Vulkan releases are")
		return false
	}
	return true
}

// staticGgml: ggml's code is in the program itself.
func staticGgml(f *elf.File) bool {
	if symbols, err := f.Symbols(); err == nil && slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == lookup && s.Section != elf.SHN_UNDEF }) {
		return true
	}
	return defines(f, lookup) || contains(f, commInterface) && !strings.HasPrefix(soname(f), "lib")
}

func soname(f *elf.File) string {
	names, _ := f.DynString(elf.DT_SONAME)
	return strings.Join(names, "")
}

// static reports a directory of programs with ggml linked in.
func (r *llamaReport) static(dir string) bool {
	programs, _ := filepath.Glob(filepath.Join(dir, "llama-*"))
	for _, p := range programs {
		if f, err := elf.Open(p); err == nil {
			is := staticGgml(f)
			f.Close()
			if is {
				r.problem(p+" has ggml linked in statically: its calls pass no PLT, and nothing can stand in front of them", "build with -DBUILD_SHARED_LIBS=ON, as the official Vulkan releases are")
				return true
			}
		}
	}
	return false
}

func libraryDirs(path string, isDir bool) []string {
	if isDir {
		return []string{path, filepath.Join(path, "lib"), filepath.Join(path, "bin"), filepath.Join(path, "build/bin")}
	}
	here := filepath.Dir(path)
	dirs := []string{here}
	if f, err := elf.Open(path); err == nil {
		defer f.Close()
		for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
			values, _ := f.DynString(tag)
			for _, dir := range strings.Split(strings.Join(values, ":"), ":") {
				dir = strings.NewReplacer("$ORIGIN", here, "${ORIGIN}", here).Replace(dir)
				if dir = filepath.Clean(dir); dir != "." && !slices.Contains(dirs, dir) {
					dirs = append(dirs, dir)
				}
			}
		}
	}
	return append(dirs, filepath.Join(here, "../lib"))
}

// findShared returns the first libNAME.so, libNAME.so.0 or libNAME.word.so.
func findShared(dirs []string, name string) string {
	for _, dir := range dirs {
		for _, pattern := range []string{"lib" + name + ".so", "lib" + name + ".so.*", "lib" + name + ".*.so"} {
			if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) > 0 {
				return found[0]
			}
		}
	}
	return ""
}

// libraries looks at how calls are bound, and at what ggml says of itself.
func (r *llamaReport) libraries() {
	for library, path := range map[string]string{"ggml-base": r.Base, "ggml-vulkan": r.Vulkan} {
		if path == "" {
			continue
		}
		if err := r.library(library, path); err != nil {
			r.problem(fmt.Sprintf("%s: %v", path, err), "a Linux x86-64 build with shared libraries is needed")
		}
	}
	for _, h := range hooked {
		if h.function == lookup && !r.Interface {
			continue // made for communicators alone; that there are none is said below
		}
		switch how, looked := r.Hooks[h.function]; {
		case looked && how == "local":
			r.problem(fmt.Sprintf("lib%s.so looks for %s in itself first (-Bsymbolic)", h.library, h.function), "build without -Wl,-Bsymbolic")
		case looked && how == "none":
			r.problem(fmt.Sprintf("lib%s.so does not call %s through its PLT", h.library, h.function), "build without -fno-semantic-interposition, -fvisibility=hidden or -Bsymbolic-functions")
		}
	}
	r.Ggml = askGgml(r.Base)
	switch {
	case !r.Interface:
		r.problem("this version has no communicator interface ("+commInterface+"): -sm tensor cannot use one", "update llama.cpp")
	case r.Ggml != nil && r.Ggml.Error == "" && r.Ggml.Overhead != ggmlTensorOverhead:
		r.problem(fmt.Sprintf("ggml_tensor_overhead() is %d bytes, this plugin is built for %d: another ggml ABI", r.Ggml.Overhead, ggmlTensorOverhead), "use a plugin built for this llama.cpp")
	}
}

func (r *llamaReport) library(library, path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Machine != elf.EM_X86_64 {
		return fmt.Errorf("is for %v", f.Machine)
	}
	var names []string
	for _, h := range hooked {
		if h.library == library {
			names = append(names, h.function)
		}
	}
	found, err := bindings(f, names)
	if err != nil {
		return err
	}
	for _, name := range names {
		r.Hooks[name] = [...]string{bindsNone: "none", bindsPLT: "plt", bindsLocal: "local"}[found[name]]
	}
	if library == "ggml-base" {
		r.Interface = contains(f, commInterface)
	}
	return nil
}

// ggmlAnswer is what a libggml-base says of itself.
type ggmlAnswer struct {
	Version  string `json:"version,omitempty"`
	Commit   string `json:"commit,omitempty"`
	Overhead int    `json:"tensorOverhead"`
	Error    string `json:"error,omitempty"`
}

// askGgml loads the library in a process of its own: its constructors are not
// ours to run.
func askGgml(path string) *ggmlAnswer {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "probe-ggml", path)
	cmd.Env = setEnv(os.Environ(), "LD_PRELOAD", "")
	text, err := cmd.Output()
	var a ggmlAnswer
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err != nil {
		a.Error = "not asked: " + err.Error()
	}
	return &a
}

func (r *llamaReport) print(w io.Writer) {
	verdict := "can be hooked"
	if !r.Hookable {
		verdict = "cannot be hooked, see below"
	}
	fmt.Fprintf(w, "\nllama.cpp at %s: %s\n", r.Path, verdict)
	for _, path := range []string{r.Base, r.Vulkan} {
		if path != "" {
			fmt.Fprintf(w, "  %s\n", path)
		}
	}
	for _, h := range hooked {
		if how, ok := r.Hooks[h.function]; ok {
			fmt.Fprintf(w, "  %-34s %s (lib%s)\n", h.function, how, h.library)
		}
	}
	if r.Base != "" {
		fmt.Fprintf(w, "  communicator interface: %v\n", r.Interface)
	}
	if a := r.Ggml; a != nil && a.Error != "" {
		fmt.Fprintf(w, "  ggml: %s\n", a.Error)
	} else if a != nil {
		fmt.Fprintf(w, "  ggml %s (%s), tensor overhead %d bytes\n", orUnknown(a.Version), orUnknown(a.Commit), a.Overhead)
	}
}

func orUnknown(s string) string {
	if s == "" {
		return "of unknown version"
	}
	return s
}
