package main

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// baseSource calls each hooked function of libggml-base through its PLT.
func baseSource(overhead int, with string) string {
	source := "#include <stddef.h>\n" + with
	for _, h := range hooked[:4] {
		source += fmt.Sprintf("void %s(void) {}\nvoid call_%[1]s(void) { %[1]s(); }\n", h.function)
	}
	return source + fmt.Sprintf("size_t ggml_tensor_overhead(void) { return %d; }\nconst char *ggml_version(void) { return \"9.9\"; }\n", overhead)
}

const (
	vulkanSource = "void vkGetInstanceProcAddr(void);\nvoid call(void) { vkGetInstanceProcAddr(); }\n"
	hasInterface = "const char *interface(void) { return \"ggml_backend_comm_init\"; }\n"
)

func TestLlama(t *testing.T) {
	shared := []string{"-shared", "-fPIC", "-fsemantic-interposition"}
	for _, c := range []struct {
		name, base, vulkan string
		flags              []string
		says               string // empty: hookable
	}{
		{"good", baseSource(ggmlTensorOverhead, hasInterface), vulkanSource, nil, ""},
		{"old", baseSource(ggmlTensorOverhead, ""), vulkanSource, nil, "no communicator interface"},
		{"other ABI", baseSource(400, hasInterface), vulkanSource, nil, "400 bytes"},
		{"symbolic", baseSource(ggmlTensorOverhead, hasInterface), vulkanSource, []string{"-Wl,-Bsymbolic-functions"}, "does not call"},
		{"no Vulkan", baseSource(ggmlTensorOverhead, hasInterface), "", nil, "no libggml-vulkan.so"},
		{"Vulkan without the loader", baseSource(ggmlTensorOverhead, hasInterface), "int nothing;", nil, "vkGetInstanceProcAddr"},
		{"nothing", "", "", nil, "no libggml-base.so"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if c.base != "" {
				compile(t, filepath.Join(dir, "libggml-base.so.0"), c.base, append(c.flags, shared...)...)
			}
			if c.vulkan != "" {
				compile(t, filepath.Join(dir, "libggml-vulkan.so"), c.vulkan, shared...)
			}
			r := inspectLlama(dir)
			expectFindings(t, r, c.says)
			if c.says == "" && (r.Ggml == nil || r.Ggml.Version != "9.9" || r.Ggml.Overhead != ggmlTensorOverhead) {
				t.Errorf("ggml says %+v", r.Ggml)
			}
		})
	}
}

// A llama.cpp from before there were communicators never calls what is asked for them: one finding, and that not about how it
// was built.
func TestLlamaBeforeCommunicators(t *testing.T) {
	dir := t.TempDir()
	base := strings.Replace(baseSource(ggmlTensorOverhead, ""), "{ ggml_backend_reg_get_proc_address(); }", "{}", 1)
	compile(t, filepath.Join(dir, "libggml-base.so"), base, "-shared", "-fPIC", "-fsemantic-interposition")
	compile(t, filepath.Join(dir, "libggml-vulkan.so"), vulkanSource, "-shared", "-fPIC", "-fsemantic-interposition")
	r := inspectLlama(dir)
	expectFindings(t, r, "no communicator interface")
	if len(r.findings) != 1 || r.Hooks["ggml_backend_reg_get_proc_address"] != "none" {
		t.Errorf("findings %+v, hooks %v", r.findings, r.Hooks)
	}
}

func expectFindings(t *testing.T, r *llamaReport, says string) {
	t.Helper()
	var text string
	for _, f := range r.findings {
		text += f.What + "; "
	}
	if r.Hookable != (says == "") || !strings.Contains(text, says) {
		t.Errorf("hookable %v, findings %q, want %q", r.Hookable, text, says)
	}
}

func TestLlamaPrograms(t *testing.T) {
	dir := t.TempDir()
	source := hasInterface + "void ggml_backend_reg_get_proc_address(void) {}\nint main(void) { ggml_backend_reg_get_proc_address(); return interface() == 0; }\n"
	for name, flags := range map[string][]string{"llama-static-ggml": nil, "llama-stripped": {"-s"}} {
		expectFindings(t, inspectLlama(compile(t, filepath.Join(dir, name), source, flags...)), "linked in statically")
	}
	expectFindings(t, inspectLlama(dir), "linked in statically")
	expectFindings(t, inspectLlama(compile(t, filepath.Join(dir, "wholly-static"), source, "-static")), "statically linked")
	expectFindings(t, inspectLlama(filepath.Join(dir, "absent")), "no such file")
}

// The functions that doctor looks for are what the export map stands in front of.
func TestHookedAreExported(t *testing.T) {
	text, err := os.ReadFile("../../build/exports.map")
	must(t, err)
	for _, h := range hooked {
		if !strings.Contains(string(text), " "+h.function+";") {
			t.Errorf("build/exports.map does not export %s", h.function)
		}
	}
}

func TestBindings(t *testing.T) {
	source := "void a(void) {}\nvoid b(void) { a(); }\nextern int c;\nint d(void) { return c; }\n"
	for _, flags := range []struct {
		flag    string
		a, c, x binds
	}{
		{"-DNONE", bindsPLT, bindsPLT, bindsNone},
		{"-Wl,-Bsymbolic-functions", bindsNone, bindsPLT, bindsNone},
		{"-fvisibility=hidden", bindsNone, bindsPLT, bindsNone},
	} {
		path := compile(t, filepath.Join(t.TempDir(), "lib.so"), source, "-shared", "-fPIC", "-fsemantic-interposition", flags.flag)
		f, err := elf.Open(path)
		must(t, err)
		got, err := bindings(f, []string{"a", "c", "x"})
		f.Close()
		if err != nil || got["a"] != flags.a || got["c"] != flags.c || got["x"] != flags.x {
			t.Errorf("%s: %v %v", flags.flag, got, err)
		}
	}
}
