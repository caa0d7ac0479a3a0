package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ggmlvkcomm/vkimpl"
)

// TestMain lets the test binary be vkcomm itself, for what exec replaces.
func TestMain(m *testing.M) {
	if os.Getenv("VKCOMM_TEST_AS_PROGRAM") != "" || len(os.Args) > 1 && os.Args[1] == "probe-ggml" {
		os.Unsetenv("VKCOMM_TEST_AS_PROGRAM")
		os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// vkcomm runs a command line in this process.
func vkcomm(args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = execute(args, &o, &e)
	return status, o.String(), e.String()
}

// asProgram is vkcomm as a process of its own.
func asProgram(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "VKCOMM_TEST_AS_PROGRAM=1")
	return cmd
}

// compile builds a C program or library; the test is skipped where this machine
// cannot.
func compile(t *testing.T, out, source string, flags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "source.c")
	must(t, os.WriteFile(file, []byte(source), 0o644))
	if text, err := exec.Command("cc", append([]string{"-o", out, file}, flags...)...).CombinedOutput(); err != nil {
		t.Skipf("cc %v: %v: %s", flags, err, text)
	}
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// needVulkan skips where there is no device.
func needVulkan(t *testing.T) {
	t.Helper()
	s, err := vkimpl.OpenStandalone(nil, vkimpl.StandaloneOptions{})
	if errors.Is(err, vkimpl.ErrNoVulkan) {
		t.Skip(err)
	}
	must(t, err)
	s.Close()
}

func TestVersion(t *testing.T) {
	status, out, _ := vkcomm("--version")
	if status != 0 {
		t.Errorf("status %d", status)
	}
	for _, part := range []string{version, commit, "ABI 1", "368 bytes", "Vulkan headers 1."} {
		if !strings.Contains(out, part) {
			t.Errorf("%q does not say %q", out, part)
		}
	}
}

func TestHelpHasExamples(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"run", "--help"}, {"doctor", "--help"}, {"bench", "--help"}, {"plot", "--help"}, {"completion", "--help"}} {
		status, out, errs := vkcomm(args...)
		if status != 0 || !strings.Contains(out, "Example") || errs != "" {
			t.Errorf("%q: status %d, %q, %q", args, status, out, errs)
		}
	}
}

func TestWrongArguments(t *testing.T) {
	for _, c := range []struct {
		line string
		want int
		says string
	}{
		{"frobnicate", exitUsage, "frobnicate"},
		{"bench --wire f8", exitUsage, "f32, f16, bf16"},
		{"bench --algo tree", exitUsage, "singleshot, pipeline"},
		{"bench --ordering magic", exitUsage, "--ordering"},
		{"bench -b 4Q", exitUsage, "4Q"},
		{"bench -b 64K -e 4K", exitUsage, "-b not above -e"},
		{"bench -f 1", exitUsage, "-f"},
		{"bench -n 0", exitUsage, "-n"},
		{"bench --ranks 17", exitUsage, "--ranks"},
		{"bench --staging-mb 0", exitUsage, "--staging-mb"},
		{"bench -o xml", exitUsage, "--output"},
		{"plot", exitUsage, "--output"},
		{"plot x.json -o x.gif", exitUsage, ".svg and .png"},
		{"plot /nonexistent.json -o /tmp/x.svg", exitFailure, "no such file"},
		{"run", exitRunFailure, "command"},
		{"run --wire f8 true", exitRunFailure, "--wire"},
		{"run --staging-mb 2000 true", exitRunFailure, "1 to 1024"},
		{"run --log loud true", exitRunFailure, "--log"},
	} {
		status, _, errs := vkcomm(strings.Fields(c.line)...)
		if status != c.want || !strings.Contains(errs, c.says) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: status %d, want %d; %q does not say %q in one line", c.line, status, c.want, errs, c.says)
		}
	}
}

func TestCompletionIsBash(t *testing.T) {
	status, out, _ := vkcomm("completion")
	if status != 0 {
		t.Fatalf("status %d", status)
	}
	script := filepath.Join(t.TempDir(), "vkcomm")
	must(t, os.WriteFile(script, []byte(out+`
COMP_WORDS=(vkcomm bench --min) COMP_CWORD=2
_vkcomm
echo "${COMPREPLY[@]}"
COMP_WORDS=(vkcomm r) COMP_CWORD=1
_vkcomm
echo "${COMPREPLY[@]}"
COMP_WORDS=(vkcomm run --no-f) COMP_CWORD=2
_vkcomm
echo "${COMPREPLY[@]}"
`), 0o644))
	text, err := exec.Command("bash", "--norc", script).CombinedOutput()
	if want := "--minbytes --min-busbw\nrun\n--no-fp32\n"; err != nil || string(text) != want {
		t.Errorf("%v: %q, want %q", err, text, want)
	}
}
