package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"ggmlvkcomm/plugin/choice"
)

// The documentation and the man page name every subcommand, flag and variable.
func TestDocumentation(t *testing.T) {
	var c cli
	model := newParser(&c, io.Discard, io.Discard, func(int) {}).Model
	for path, plain := range map[string]func(string) string{
		"../../docs/vkcomm.md": func(s string) string { return s },
		"vkcomm.1":             func(s string) string { return strings.ReplaceAll(s, `\-`, "-") },
	} {
		text, err := os.ReadFile(path)
		must(t, err)
		has := plain(string(text))
		need := func(name string) {
			if !strings.Contains(has, name) {
				t.Errorf("%s does not name %s", path, name)
			}
		}
		for _, command := range model.Children {
			if command.Hidden {
				continue
			}
			need("vkcomm " + command.Name)
			for _, flag := range command.Flags {
				need("--" + flag.Name)
				if flag.Short != 0 {
					need("-" + string(flag.Short))
				}
			}
		}
		for _, v := range variables {
			need(v.name)
		}
		for _, name := range append(choice.Names(), rowButterfly, rowWrite, rowRead) {
			need(name)
		}
	}
}
