package plugin

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/plugin/choice"
	"ggmlvkcomm/semaphores"
)

func parse(env map[string]string) (Config, []string, []string) {
	var names []string
	for name := range env {
		names = append(names, name)
	}
	return readConfig(func(name string) (string, bool) { v, ok := env[name]; return v, ok }, names)
}

func TestConfigDefaults(t *testing.T) {
	got, overrides, complaints := parse(nil)
	want := Config{StagingMB: 16, Log: levelInfo, Wire: allreduce.F16}
	if diff := cmp.Diff(want, got); diff != "" || overrides != nil || complaints != nil {
		t.Errorf("%s overrides %q complaints %q", diff, overrides, complaints)
	}
}

func TestConfigAccepts(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        func(*Config)
	}{
		{"GGML_VK_COMM_FP32", "1", func(c *Config) { c.FP32 = true }},
		{"GGML_VK_COMM_FP32", "ON", func(c *Config) { c.FP32 = true }},
		{"GGML_VK_COMM_FP32", "off", func(*Config) {}},
		{"GGML_VK_COMM_PROXY", "1", func(c *Config) { c.Proxy = semaphores.ForceProxy }},
		{"GGML_VK_COMM_PROXY", "0", func(c *Config) { c.Proxy = semaphores.ForbidProxy }},
		{"GGML_VK_COMM_STAGING_MB", "1024", func(c *Config) { c.StagingMB = 1024 }},
		{"GGML_VK_COMM_LOG", "Error", func(c *Config) { c.Log = levelError }},
		{"GGML_VK_COMM_PARALLEL", "1", func(c *Config) { c.Parallel = true }},
		{"GGML_VK_COMM_STATS", "on", func(c *Config) { c.Stats = true }},
		{"GGML_VK_COMM_RING", "1", func(c *Config) { c.Ring = true }},
		{"GGML_VK_COMM_WIRE", "BF16", func(c *Config) { c.Wire = allreduce.BF16 }},
		{"GGML_VK_COMM_ALGO", "ring:0-max", func(c *Config) { c.Algo = choice.Rules{{Algorithm: "ring", From: 0, To: choice.MaxBytes}} }},
		{"GGML_VK_COMM_P2P", "1", func(c *Config) { c.P2P = true }},
		{"GGML_VK_COMM_CHECK", "1", func(c *Config) { c.Check = true }},
	} {
		got, overrides, complaints := parse(map[string]string{c.name: c.value})
		want := Config{StagingMB: 16, Log: levelInfo, Wire: allreduce.F16}
		c.want(&want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s=%s: %s", c.name, c.value, diff)
		}
		if len(complaints) != 0 || !cmp.Equal(overrides, []string{c.name + "=" + c.value}) {
			t.Errorf("%s=%s: overrides %q complaints %q", c.name, c.value, overrides, complaints)
		}
	}
}

// Every variable names itself, the value and what is accepted, and its default
// stays in force.
func TestConfigRejects(t *testing.T) {
	for _, v := range variables {
		for _, value := range []string{"", "yes please", "-1", "1025", "2x"} {
			got, overrides, complaints := parse(map[string]string{v.name: value})
			if diff := cmp.Diff(Config{StagingMB: 16, Log: levelInfo, Wire: allreduce.F16}, got); diff != "" {
				t.Errorf("%s=%q changed the configuration: %s", v.name, value, diff)
			}
			if len(overrides) != 0 || len(complaints) != 1 {
				t.Fatalf("%s=%q: overrides %q complaints %q", v.name, value, overrides, complaints)
			}
			for _, part := range []string{v.name, v.accepted, v.fallback, value} {
				if !strings.Contains(complaints[0], part) {
					t.Errorf("%s=%q: %q does not say %q", v.name, value, complaints[0], part)
				}
			}
		}
	}
}

func TestConfigNamesUnknownVariables(t *testing.T) {
	_, _, complaints := parse(map[string]string{"GGML_VK_COMM_RINGS": "1"})
	if len(complaints) != 1 || !strings.Contains(complaints[0], "GGML_VK_COMM_RINGS") {
		t.Errorf("complaints %q", complaints)
	}
}
