package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestComposePreload(t *testing.T) {
	const shim = "/opt/lib/" + shimName
	for _, c := range []struct{ old, want string }{
		{"", shim},
		{" ", shim},
		{"libm.so.6", shim + ":libm.so.6"},
		{"a.so b.so:c.so", shim + ":a.so b.so:c.so"},
		{shim, shim},
		{"a.so:/elsewhere/" + shimName, "a.so:/elsewhere/" + shimName},
		{"a.so " + shimName, "a.so " + shimName},
		{"/x/" + objectName, "/x/" + objectName},
		{"/x/" + objectName + ".bak", shim + ":/x/" + objectName + ".bak"},
	} {
		got, err := composePreload(c.old, shim)
		if err != nil || got != c.want {
			t.Errorf("%q: %q, %v; want %q", c.old, got, err, c.want)
		}
		if again, err := composePreload(got, shim); err != nil || again != got {
			t.Errorf("%q: a second time gives %q, %v", c.old, again, err)
		}
	}
	for _, bad := range []string{"/with space/" + shimName, "/with:colon/" + shimName} {
		if got, err := composePreload("", bad); err == nil {
			t.Errorf("%q: no error, but %q", bad, got)
		}
	}
}

// The flags of run are the variables of the plugin, in its order.
func TestVariablesAreThePlugins(t *testing.T) {
	text, err := os.ReadFile("../../plugin/config.go")
	must(t, err)
	var want, got []string
	for _, m := range regexp.MustCompile(`(?m)^\t\{"(GGML_VK_COMM_\w+)"`).FindAllStringSubmatch(string(text), -1) {
		want = append(want, m[1])
	}
	for _, v := range variables {
		got = append(got, v.name)
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
		t.Errorf("plugin/config.go (-) and run.go (+): %s", diff)
	}
}

func TestEnvironment(t *testing.T) {
	yes, no := true, false
	c := runCmd{Off: &no, FP32: &yes, Wire: "bf16", Ring: &yes, Algo: "ring:0-max", Proxy: &no, StagingMB: 4, Log: "debug", Stats: &yes, Check: &no}
	env, err := c.environment([]string{"A=1", "GGML_VK_COMM_RING=0", "LD_PRELOAD=x.so", "GGML_VK_COMM_OFF=1", "B=a=b"}, "/s.so")
	want := []string{"A=1", "B=a=b", "LD_PRELOAD=/s.so:x.so", "GGML_VK_COMM_OFF=0", "GGML_VK_COMM_FP32=1", "GGML_VK_COMM_WIRE=bf16",
		"GGML_VK_COMM_RING=1", "GGML_VK_COMM_ALGO=ring:0-max", "GGML_VK_COMM_PROXY=0", "GGML_VK_COMM_STAGING_MB=4", "GGML_VK_COMM_LOG=debug",
		"GGML_VK_COMM_STATS=1", "GGML_VK_COMM_CHECK=0"}
	if diff := cmp.Diff(want, env); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	// What is not given stays as it is.
	env, err = (&runCmd{}).environment([]string{"GGML_VK_COMM_RING=1"}, "/s.so")
	if diff := cmp.Diff([]string{"GGML_VK_COMM_RING=1", "LD_PRELOAD=/s.so"}, env); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

const emptyMain = "int main(void) { return 7; }"

func TestPreloadable(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	dynamic := compile(t, at("dynamic"), emptyMain)
	if err := preloadable(dynamic); err != nil {
		t.Errorf("dynamic: %v", err)
	}
	for name, mode := range map[string]os.FileMode{"setuid": os.ModeSetuid, "setgid": os.ModeSetgid} {
		text, err := os.ReadFile(dynamic)
		must(t, err)
		must(t, os.WriteFile(at(name), text, 0o755))
		must(t, os.Chmod(at(name), 0o755|mode))
		if err := preloadable(at(name)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	script := func(name, line string) string {
		must(t, os.WriteFile(at(name), []byte(line+"\n"), 0o755))
		return at(name)
	}
	if err := preloadable(script("good", "#!/bin/sh -e")); err != nil {
		t.Errorf("script: %v", err)
	}
	if err := preloadable(script("empty", "#!")); err == nil {
		t.Error("a script without an interpreter is taken")
	}
	static := compile(t, at("static"), emptyMain, "-static")
	for _, path := range []string{static, script("by-static", "#! "+static)} {
		if err := preloadable(path); err == nil || !strings.Contains(err.Error(), "statically linked") {
			t.Errorf("%s: %v", path, err)
		}
	}
	foreign, err := os.ReadFile(dynamic)
	must(t, err)
	foreign[18] = 183 // e_machine: AArch64
	must(t, os.WriteFile(at("foreign"), foreign, 0o755))
	if err := preloadable(at("foreign")); err == nil || !strings.Contains(err.Error(), "AARCH64") {
		t.Errorf("foreign: %v", err)
	}
}

// fakePlugin is a directory with objects that do nothing.
func fakePlugin(t *testing.T) string {
	dir := t.TempDir()
	for _, name := range []string{shimName, objectName} {
		compile(t, filepath.Join(dir, name), "int vkcomm_test_nothing;", "-shared", "-fPIC")
	}
	return dir
}

func TestRunIsTransparent(t *testing.T) {
	lib := fakePlugin(t)
	program := compile(t, filepath.Join(t.TempDir(), "seven"), emptyMain)
	status := func(args ...string) *os.ProcessState {
		cmd := asProgram(t, append([]string{"run", "--lib", lib}, args...)...)
		_ = cmd.Run()
		return cmd.ProcessState
	}
	if got := status("--", program).ExitCode(); got != 7 {
		t.Errorf("exit status %d, want 7", got)
	}
	if s := status("sh", "-c", "kill -TERM $$").Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGTERM {
		t.Errorf("wait status %#x, want death by SIGTERM", s)
	}
	cmd := asProgram(t, "run", "--lib", lib, "--fp32", "--no-proxy", "sh", "-c", "echo $LD_PRELOAD $GGML_VK_COMM_FP32 $GGML_VK_COMM_PROXY $0 $1", "--off", "--help")
	cmd.Env = append(cmd.Env, "LD_PRELOAD=")
	out, err := cmd.CombinedOutput()
	if want := filepath.Join(lib, shimName) + " 1 0 --off --help\n"; err != nil || string(out) != want {
		t.Errorf("%v %q, want %q", err, out, want)
	}
}

// A signal that the parent ignores is ignored in the command as well, whatever
// Go's runtime did in between.
func TestRunKeepsIgnoredSignals(t *testing.T) {
	lib := fakePlugin(t)
	const show = "grep SigIgn /proc/self/status"
	shell := exec.Command("sh", "-c", `trap '' PIPE TERM USR1; `+show+`; "$0" run --lib "$1" sh -c '`+show+`'`, os.Args[0], lib)
	shell.Env = append(os.Environ(), "VKCOMM_TEST_AS_PROGRAM=1")
	out, err := shell.CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || len(lines) != 2 || lines[0] != lines[1] || strings.HasSuffix(lines[0], "0000000000000000") {
		t.Errorf("%v %q", err, out)
	}
}

func TestRunRefuses(t *testing.T) {
	lib := fakePlugin(t)
	half := t.TempDir()
	must(t, os.WriteFile(filepath.Join(half, shimName), nil, 0o644))
	plain := filepath.Join(t.TempDir(), "plain")
	must(t, os.WriteFile(plain, []byte("x"), 0o644))
	for _, c := range []struct {
		args []string
		want int
		says string
	}{
		{[]string{"--lib", lib, "no-such-command"}, exitNotFound, "command not found"},
		{[]string{"--lib", lib, plain}, exitRefused, "permission denied"},
		{[]string{"--lib", "/nonexistent", "true"}, exitRunFailure, "/nonexistent"},
		{[]string{"--lib", half, "true"}, exitRunFailure, objectName},
		{[]string{"--lib", lib, "--"}, exitRunFailure, "no command"},
		{[]string{"true"}, exitRunFailure, "--lib"}, // nothing is beside the test binary
	} {
		status, out, errs := vkcomm(append([]string{"run"}, c.args...)...)
		if status != c.want || !strings.Contains(errs, c.says) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%q: status %d, want %d; %q does not say %q", c.args, status, c.want, errs, c.says)
		}
	}
}
