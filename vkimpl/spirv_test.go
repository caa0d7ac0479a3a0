package vkimpl

import (
	"encoding/binary"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Every kernel with every mode is still a valid module.
func TestFloatModesKeepModulesValid(t *testing.T) {
	validator, err := exec.LookPath("spirv-val")
	if err != nil {
		t.Skip("spirv-val is not installed")
	}
	names, err := fs.Glob(spirv, "shaders/*.spv")
	if err != nil || len(names) == 0 {
		t.Fatal("no kernels", err)
	}
	for _, name := range names {
		code, _ := spirv.ReadFile(name)
		words, err := withFloatModes(code, []floatMode{roundToEven16, denormPreserve16, denormPreserve32})
		if err != nil {
			t.Fatal(name, err)
		}
		if got := len(words) - len(code)/4; got != 2*2+3*4 {
			t.Errorf("%s: %d words added, want two capabilities and three modes", name, got)
		}
		file := filepath.Join(t.TempDir(), "patched.spv")
		bytes := make([]byte, 4*len(words))
		for i, w := range words {
			binary.LittleEndian.PutUint32(bytes[4*i:], w)
		}
		if err := os.WriteFile(file, bytes, 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := exec.Command(validator, "--target-env", "vulkan1.2", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, text)
		}
	}
}

func TestFloatModesRejectDamagedModules(t *testing.T) {
	code, _ := spirv.ReadFile("shaders/pack_f32.spv")
	for name, bad := range map[string][]byte{"empty": nil, "cut": code[:4*(spirvHeader+1)], "no magic": append([]byte{0}, code[1:]...)} {
		if _, err := withFloatModes(bad, []floatMode{denormPreserve32}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
