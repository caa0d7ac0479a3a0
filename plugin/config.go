package plugin

// #include <stdlib.h>
import "C"

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"unsafe"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/plugin/choice"
	"ggmlvkcomm/semaphores"
)

// Config is what the environment asks for.
type Config struct {
	Proxy     semaphores.Preference
	FP32      bool
	Ring      bool
	Algo      choice.Rules // nil: chosen by measurement
	Wire      allreduce.Wire
	StagingMB int // per rank
	P2P       bool
	Log       level
	Stats     bool
	Parallel  bool
	Check     bool
}

// variable is one name of the environment. parse returns false for a value
// that is not among those accepted.
type variable struct {
	name, accepted, fallback string
	parse                    func(c *Config, value string) bool
}

// variables lists every name that is read, in the order of the documentation.
// GGML_VK_COMM_OFF is obeyed by the preloaded side (loader.c); here a wrong
// value is complained of.
var variables = []variable{
	{"GGML_VK_COMM_OFF", "1, 0, on, off", "0", func(_ *Config, v string) bool { return parseSwitch(v, new(bool)) }},
	{"GGML_VK_COMM_FP32", "1, 0, on, off", "0", func(c *Config, v string) bool { return parseSwitch(v, &c.FP32) }},
	{"GGML_VK_COMM_WIRE", "f32, f16, bf16", "f16", parseWire},
	{"GGML_VK_COMM_RING", "1, 0, on, off", "0", func(c *Config, v string) bool { return parseSwitch(v, &c.Ring) }},
	{"GGML_VK_COMM_ALGO", "ranges from 0 to max as singleshot:0-256K,pipeline:256K-max, of " + strings.Join(choice.Names(), ", "), "automatic",
		func(c *Config, v string) (ok bool) { c.Algo, ok = choice.Parse(v); return ok }},
	{"GGML_VK_COMM_PROXY", "1 (force), 0 (forbid), on, off", "automatic", parseProxy},
	{"GGML_VK_COMM_STAGING_MB", "1 to 1024", strconv.Itoa(choice.StagingMB), parseStaging},
	{"GGML_VK_COMM_P2P", "1, 0, on, off", "0", func(c *Config, v string) bool { return parseSwitch(v, &c.P2P) }},
	{"GGML_VK_COMM_PARALLEL", "1, 0, on, off", "0", func(c *Config, v string) bool { return parseSwitch(v, &c.Parallel) }},
	{"GGML_VK_COMM_LOG", "debug, info, warn, error, none", "info", func(c *Config, v string) bool { return parseLevel(v, &c.Log) }},
	{"GGML_VK_COMM_STATS", "1, 0, on, off", "0", func(c *Config, v string) bool { return parseSwitch(v, &c.Stats) }},
	{"GGML_VK_COMM_CHECK", "1, 0, on, off", "0", func(c *Config, v string) bool { return parseSwitch(v, &c.Check) }},
}

const prefix = "GGML_VK_COMM_"

// readConfig parses what get returns for every variable. complaints are ERROR
// lines, one for each value that was not used; overrides lists the others as
// NAME=value.
func readConfig(get func(name string) (string, bool), names []string) (c Config, overrides, complaints []string) {
	c = Config{StagingMB: choice.StagingMB, Log: levelInfo, Wire: allreduce.F16}
	for _, v := range variables {
		value, ok := get(v.name)
		if !ok {
			continue
		}
		if v.parse(&c, value) {
			overrides = append(overrides, v.name+"="+value)
		} else {
			complaints = append(complaints, fmt.Sprintf("%s=%q is not accepted, using %s (accepted: %s)", v.name, value, v.fallback, v.accepted))
		}
	}
	for _, name := range names {
		if !known(name) {
			plain := strings.Trim(strconv.Quote(name), `"`) // whatever it holds, the line stays one
			complaints = append(complaints, fmt.Sprintf("%s is not a variable of this plugin (there are %s)", plain, strings.Join(variableNames(), ", ")))
		}
	}
	return c, overrides, complaints
}

func known(name string) bool {
	for _, v := range variables {
		if v.name == name {
			return true
		}
	}
	return false
}

func variableNames() (names []string) {
	for _, v := range variables {
		names = append(names, v.name)
	}
	return names
}

func parseSwitch(value string, out *bool) bool {
	switch strings.ToLower(value) {
	case "1", "on":
		*out = true
	case "0", "off":
		*out = false
	default:
		return false
	}
	return true
}

func parseWire(c *Config, value string) bool {
	for _, w := range []allreduce.Wire{allreduce.F32, allreduce.F16, allreduce.BF16} {
		if strings.EqualFold(value, w.String()) {
			c.Wire = w
			return true
		}
	}
	return false
}

func parseProxy(c *Config, value string) bool {
	var force bool
	if !parseSwitch(value, &force) {
		return false
	}
	c.Proxy = semaphores.ForbidProxy
	if force {
		c.Proxy = semaphores.ForceProxy
	}
	return true
}

func parseStaging(c *Config, value string) bool {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > 1024 {
		return false
	}
	c.StagingMB = n
	return true
}

// getenv reads the process's environment, of which Go's copy misses what the
// host set after the Go object was loaded.
func getenv(name string) (string, bool) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	value := C.getenv(text)
	return C.GoString(value), value != nil
}

// environNames lists the names in the environment that look like ours.
func environNames() (names []string) {
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}
