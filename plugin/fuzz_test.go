package plugin

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ggmlvkcomm/allreduce"
	"ggmlvkcomm/plugin/choice"
)

// environment reads NAME=VALUE lines; of two of one name the first counts, as
// for getenv.
func environment(text string) (get func(string) (string, bool), names []string) {
	values := map[string]string{}
	for _, line := range strings.Split(text, "\n") {
		name, value, _ := strings.Cut(line, "=")
		if _, twice := values[name]; !twice && strings.HasPrefix(name, prefix) {
			values[name] = value
			names = append(names, name)
		}
	}
	return func(name string) (string, bool) { v, ok := values[name]; return v, ok }, names
}

// checkConfig holds a configuration to what the rest of the plugin takes for
// granted.
func checkConfig(c Config) error {
	if c.StagingMB < 1 || c.StagingMB > 1024 {
		return fmt.Errorf("staging of %d MiB", c.StagingMB)
	}
	if c.Wire != allreduce.F32 && c.Wire != allreduce.F16 && c.Wire != allreduce.BF16 {
		return fmt.Errorf("wire %d", c.Wire)
	}
	if c.Log < levelDebug || c.Log > levelNone {
		return fmt.Errorf("log level %d", c.Log)
	}
	for world := 2; world <= allreduce.MaxWorld; world++ {
		s, _ := newSelection(&c, world)
		if err := checkRules(s.rules); err != nil {
			return fmt.Errorf("%d ranks: %w", world, err)
		}
		for _, r := range s.rules {
			for _, bytes := range []int64{r.From, r.To - 1} {
				if a := s.algorithm(bytes); a != r.Algorithm && r.Algorithm != allreduce.AlgorithmRelay || !slices.Contains(choice.Names(), a) {
					return fmt.Errorf("%d bytes are reduced by %q, the rule is %+v", bytes, a, r)
				}
			}
		}
	}
	return nil
}

// checkRules: from 0 to the largest size without a gap.
func checkRules(rules choice.Rules) error {
	next := int64(0)
	for _, r := range rules {
		if r.From != next || r.To <= r.From || !slices.Contains(choice.Names(), r.Algorithm) {
			return fmt.Errorf("rules %+v", rules)
		}
		next = r.To
	}
	if next != math.MaxInt64 {
		return fmt.Errorf("rules %+v end at %d", rules, next)
	}
	return nil
}

// FuzzConfig: any environment gives a configuration that can be worked with;
// each variable is either used, and echoed, or complained of in one line and
// then without an effect.
func FuzzConfig(f *testing.F) {
	for _, text := range []string{
		"",
		"GGML_VK_COMM_STAGING_MB=16\nGGML_VK_COMM_FP32=1",
		"GGML_VK_COMM_STAGING_MB=99999999999999999999\nGGML_VK_COMM_FP32=yes\nGGML_VK_COMM_RINGS=1",
		"GGML_VK_COMM_ALGO=singleshot:0-256K,pipeline:256K-1M,twoshot:1M-max\nGGML_VK_COMM_WIRE=bf16\nGGML_VK_COMM_PROXY=off",
		"GGML_VK_COMM_ALGO=relay:0-64K,singleshot:64K-max\nGGML_VK_COMM_RING=on\nGGML_VK_COMM_LOG=None",
		"GGML_VK_COMM_ALGO=ring:0-1099511627776M,ring:1099511627776M-max\nGGML_VK_COMM_P2P=1",
		"GGML_VK_COMM_ALGO=singleshot:0-1M",
		"GGML_VK_COMM_\x1b[2J=1",
		"GGML_VK_COMM_ALGO=ring:max-max\nGGML_VK_COMM_CHECK= 1\nGGML_VK_COMM_STATS\nGGML_VK_COMM_=\nGGML_VK_COMM_OFF=2",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		get, names := environment(text)
		c, overrides, complaints := readConfig(get, names)
		if err := checkConfig(c); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if len(overrides)+len(complaints) != len(names) {
			t.Errorf("%q: %d names, overrides %q, complaints %q", text, len(names), overrides, complaints)
		}
		for _, line := range complaints {
			if strings.ContainsAny(line, "\n\x00\x1b") {
				t.Errorf("%q: not one plain line: %q", text, line)
			}
		}
		accepted := func(name string) (string, bool) {
			value, ok := get(name)
			return value, ok && slices.Contains(overrides, name+"="+value)
		}
		if again, _, rest := readConfig(accepted, nil); !reflect.DeepEqual(c, again) || rest != nil {
			t.Errorf("%q: what is complained of has an effect: %+v, without it %+v", text, c, again)
		}
	})
}

// FuzzAlgo: what is accepted prints as it can be read again.
func FuzzAlgo(f *testing.F) {
	for _, text := range []string{"singleshot:0-max", "singleshot:0-8K,pipeline:8K-64K,twoshot:64K-256K,ring:256K-max",
		"relay:0-1,singleshot:1-3,ring:3-max", "ring:0-0,ring:0-max", "ring:0-1K,ring:2K-max", "ring:0--1", "ring:0-K", "ring:00-+8K,ring:8192-max",
		"ring:0-549755813887M,twoshot:549755813887M-max", ",", ":", "-", "ring:0-max,", "ring:0-max,ring:max-max"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rules, ok := choice.Parse(text)
		if !ok {
			return
		}
		if err := checkRules(rules); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		s := selection{rules: rules, wire: allreduce.F32}
		printed, _, _ := strings.Cut(s.String(), " (")
		if again, ok := choice.Parse(printed); !ok || !reflect.DeepEqual(rules, again) {
			t.Errorf("%q prints as %q, which reads as %+v", text, printed, again)
		}
	})
}
