package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	shimName   = "libggml-vk-comm-preload.so"
	objectName = "libggml-vk-comm.so"

	exitRunFailure = 125
	exitRefused    = 126
	exitNotFound   = 127
)

// runCmd has a flag for each variable of the plugin; variables ties them.
type runCmd struct {
	Off       *bool    `negatable:"" help:"Stock behaviour: the plugin does nothing (GGML_VK_COMM_OFF)."`
	FP32      *bool    `name:"fp32" negatable:"" help:"F32 wire at all sizes, bit-equal to stock (GGML_VK_COMM_FP32)."`
	Wire      string   `enum:",f32,f16,bf16" default:"" placeholder:"f32|f16|bf16" help:"Wire of tensors from 1 MiB on (GGML_VK_COMM_WIRE)."`
	Ring      *bool    `negatable:"" help:"The ring for large tensors (GGML_VK_COMM_RING)."`
	Algo      string   `placeholder:"RANGES" help:"Algorithm by size, as singleshot:0-256K,pipeline:256K-max (GGML_VK_COMM_ALGO)."`
	Proxy     *bool    `negatable:"" help:"Force, or forbid, ordering by host threads (GGML_VK_COMM_PROXY)."`
	StagingMB int      `name:"staging-mb" placeholder:"N" help:"Host memory of a rank, 1 to 1024 MiB (GGML_VK_COMM_STAGING_MB)."`
	P2P       *bool    `name:"p2p" negatable:"" help:"Staging in VRAM that peers read directly, where that works and is faster (GGML_VK_COMM_P2P)."`
	Parallel  *bool    `negatable:"" help:"Record the ranks' graphs on a thread each (GGML_VK_COMM_PARALLEL)."`
	Log       string   `enum:",debug,info,warn,error,none" default:"" placeholder:"LEVEL" help:"Least level of log lines: debug, info, warn, error, none (GGML_VK_COMM_LOG)."`
	Stats     *bool    `negatable:"" help:"A summary when a context is freed (GGML_VK_COMM_STATS)."`
	Check     *bool    `negatable:"" help:"Compare every sum with one made on the CPU (GGML_VK_COMM_CHECK)."`
	Lib       string   `placeholder:"PATH" help:"The shim, or the directory that has it (default: beside vkcomm, or in ../lib)."`
	Command   []string `arg:"" passthrough:"" help:"The command and its arguments."`
}

// Help is the long text of vkcomm run --help.
func (*runCmd) Help() string {
	return `The command takes vkcomm's place: same process, same signals, its own exit status. LD_PRELOAD is kept and the
shim put in front of it, unless it names the plugin already. Flags set the variables of the same name; what is not
given stays as the environment has it.

Exit status: that of the command; 125 if vkcomm fails, 126 if the command cannot be run with the plugin (set-id,
statically linked, another architecture), 127 if it is not found.

Examples:
  vkcomm run -- llama-server -m model.gguf -sm tensor -fa on
  vkcomm run --off -- llama-bench -m model.gguf -sm tensor -fa 1
  vkcomm run --fp32 --log debug -- llama-cli -m model.gguf -sm tensor -fa on`
}

// variable is one of the plugin's, with what run's flag says of it.
type variable struct {
	name  string
	value func(c *runCmd) (text string, given bool)
}

// variables of plugin/config.go, in its order. A test compares the two.
var variables = []variable{
	{"GGML_VK_COMM_OFF", func(c *runCmd) (string, bool) { return switchText(c.Off) }},
	{"GGML_VK_COMM_FP32", func(c *runCmd) (string, bool) { return switchText(c.FP32) }},
	{"GGML_VK_COMM_WIRE", func(c *runCmd) (string, bool) { return c.Wire, c.Wire != "" }},
	{"GGML_VK_COMM_RING", func(c *runCmd) (string, bool) { return switchText(c.Ring) }},
	{"GGML_VK_COMM_ALGO", func(c *runCmd) (string, bool) { return c.Algo, c.Algo != "" }},
	{"GGML_VK_COMM_PROXY", func(c *runCmd) (string, bool) { return switchText(c.Proxy) }},
	{"GGML_VK_COMM_STAGING_MB", func(c *runCmd) (string, bool) { return strconv.Itoa(c.StagingMB), c.StagingMB != 0 }},
	{"GGML_VK_COMM_P2P", func(c *runCmd) (string, bool) { return switchText(c.P2P) }},
	{"GGML_VK_COMM_PARALLEL", func(c *runCmd) (string, bool) { return switchText(c.Parallel) }},
	{"GGML_VK_COMM_LOG", func(c *runCmd) (string, bool) { return c.Log, c.Log != "" }},
	{"GGML_VK_COMM_STATS", func(c *runCmd) (string, bool) { return switchText(c.Stats) }},
	{"GGML_VK_COMM_CHECK", func(c *runCmd) (string, bool) { return switchText(c.Check) }},
}

func switchText(b *bool) (string, bool) {
	if b == nil {
		return "", false
	}
	if *b {
		return "1", true
	}
	return "0", true
}

// Validate refuses what the plugin would refuse.
func (c *runCmd) Validate() error {
	if c.StagingMB < 0 || c.StagingMB > 1024 {
		return fmt.Errorf("--staging-mb is %d, accepted: 1 to 1024", c.StagingMB)
	}
	return nil
}

// Run does not return when the command starts.
func (c *runCmd) Run() error {
	command := c.Command
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 {
		return &exitError{exitRunFailure, "run: no command (see vkcomm run --help)"}
	}
	shim, err := findShim(c.Lib)
	if err != nil {
		return &exitError{exitRunFailure, "run: " + err.Error()}
	}
	path, err := exec.LookPath(command[0])
	if errors.Is(err, fs.ErrPermission) {
		return &exitError{exitRefused, fmt.Sprintf("run: %s: permission denied", command[0])}
	}
	if err != nil {
		return &exitError{exitNotFound, fmt.Sprintf("run: %s: command not found", command[0])}
	}
	if err := preloadable(path); err != nil {
		return &exitError{exitRefused, "run: " + err.Error()}
	}
	env, err := c.environment(os.Environ(), shim)
	if err != nil {
		return &exitError{exitRunFailure, "run: " + err.Error()}
	}
	restoreIgnored()
	err = syscall.Exec(path, command, env)
	return &exitError{exitRefused, fmt.Sprintf("run: %s: %v", path, err)}
}

// environment is env with the shim preloaded and the flags' variables set.
func (c *runCmd) environment(env []string, shim string) ([]string, error) {
	old, _ := lookupEnv(env, "LD_PRELOAD")
	preload, err := composePreload(old, shim)
	if err != nil {
		return nil, err
	}
	env = setEnv(env, "LD_PRELOAD", preload)
	for _, v := range variables {
		if text, given := v.value(c); given {
			env = setEnv(env, v.name, text)
		}
	}
	return env, nil
}

func lookupEnv(env []string, name string) (string, bool) {
	for _, entry := range env {
		if n, value, ok := strings.Cut(entry, "="); ok && n == name {
			return value, true
		}
	}
	return "", false
}

// setEnv leaves exactly one entry of that name.
func setEnv(env []string, name, value string) []string {
	var out []string
	for _, entry := range env {
		if n, _, _ := strings.Cut(entry, "="); n != name {
			out = append(out, entry)
		}
	}
	return append(out, name+"="+value)
}

// composePreload puts the shim in front of LD_PRELOAD's value, which stays as
// it is where it names the shim or the Go object already.
func composePreload(old, shim string) (string, error) {
	for _, entry := range strings.FieldsFunc(old, func(r rune) bool { return r == ':' || r == ' ' }) {
		if base := filepath.Base(entry); base == shimName || base == objectName {
			return old, nil
		}
	}
	if strings.ContainsAny(shim, ": ") {
		return "", fmt.Errorf("%s: a path with a space or a colon cannot be in LD_PRELOAD", shim)
	}
	if strings.Trim(old, ": ") == "" {
		return shim, nil
	}
	return shim + ":" + old, nil
}

// linkerDirectories are searched by ld.so for a name without a slash.
var linkerDirectories = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"}

// findShim returns what LD_PRELOAD is to name: the plain name where ld.so finds
// the shim by itself, so that a child of another architecture looks for its own.
func findShim(lib string) (string, error) {
	path, err := findLibrary(lib, shimName)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(path), objectName)); err != nil {
		return "", fmt.Errorf("%s is there, but not %s beside it: install both", path, objectName)
	}
	for _, dir := range linkerDirectories {
		if filepath.Dir(path) == dir {
			return shimName, nil
		}
	}
	return path, nil
}

// findLibrary looks for the shim where the user says, else beside this program
// and in the library directories next to it.
func findLibrary(lib, name string) (string, error) {
	if lib != "" {
		path, err := filepath.Abs(lib)
		if err != nil {
			return "", err
		}
		info, err := os.Stat(path)
		if err == nil && info.IsDir() {
			path = filepath.Join(path, name)
			_, err = os.Stat(path)
		}
		if err != nil {
			return "", fmt.Errorf("--lib: there is no %s", path)
		}
		return path, nil
	}
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	if resolved, err := filepath.EvalSymlinks(program); err == nil {
		program = resolved
	}
	here := filepath.Dir(program)
	for _, dir := range []string{here, filepath.Join(here, "../lib"), filepath.Join(here, "../lib/x86_64-linux-gnu"), filepath.Join(here, "../lib64")} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is neither beside %s nor in ../lib: name it with --lib", name, program)
}

// preloadable says in one line why ld.so would not preload anything into the
// program at path, if so.
func preloadable(path string) error {
	if err := setID(path); err != nil {
		return err
	}
	for range 4 { // as many interpreters of interpreters as the kernel follows
		interpreter, err := scriptInterpreter(path)
		if err != nil {
			return fmt.Errorf("%s: %v", path, err)
		}
		if interpreter == "" {
			return checkProgram(path)
		}
		path = interpreter
	}
	return nil // the kernel will say what it thinks
}

// setID: ld.so ignores paths in LD_PRELOAD in a program that gains privileges.
func setID(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	switch {
	case info.Mode()&os.ModeSetuid != 0:
		return fmt.Errorf("%s is setuid, and the dynamic linker preloads nothing into it", path)
	case info.Mode()&os.ModeSetgid != 0:
		return fmt.Errorf("%s is setgid, and the dynamic linker preloads nothing into it", path)
	}
	if n, err := unix.Getxattr(path, "security.capability", nil); err == nil && n > 0 {
		return fmt.Errorf("%s has file capabilities, and the dynamic linker preloads nothing into it", path)
	}
	return nil
}
