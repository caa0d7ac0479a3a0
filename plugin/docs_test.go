package plugin

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"ggmlvkcomm/plugin/choice"
)

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The documentation names every variable, and every algorithm that one accepts.
func TestDocsNameEveryVariable(t *testing.T) {
	for _, path := range []string{"../README.md", "../docs/env.md"} {
		text := readText(t, path)
		for _, name := range append(variableNames(), choice.Names()...) {
			if !strings.Contains(text, "`"+name+"`") {
				t.Errorf("%s does not name %s", path, name)
			}
		}
	}
}

// docs/env.md has each variable's default and values in one row, and nothing
// that is not read.
func TestEnvTable(t *testing.T) {
	text := readText(t, "../docs/env.md")
	for _, v := range variables {
		row := regexp.MustCompile("(?m)^\\| `" + v.name + "` \\|.*$").FindString(text)
		if v.name != "GGML_VK_COMM_ALGO" && !strings.Contains(row, v.accepted) {
			t.Errorf("docs/env.md does not say of %s that it takes %s, but %q", v.name, v.accepted, row)
		}
		if fallback := "| " + v.fallback + " |"; v.name != "GGML_VK_COMM_ALGO" && !strings.HasSuffix(row, fallback) {
			t.Errorf("docs/env.md does not say of %s that its default is %s, but %q", v.name, v.fallback, row)
		}
	}
	for _, path := range []string{"../README.md", "../docs/env.md", "../docs/troubleshooting.md", "../docs/performance.md"} {
		for _, name := range regexp.MustCompile(prefix+`[A-Z0-9_]+`).FindAllString(readText(t, path), -1) {
			if !known(name) {
				t.Errorf("%s names %s, which is no variable", path, name)
			}
		}
	}
}

// docs/troubleshooting.md has every reason for which a reduction is left to
// llama.cpp.
func TestDocsNameEveryReason(t *testing.T) {
	text := readText(t, "../docs/troubleshooting.md")
	for r := range reasonCount {
		if !strings.Contains(text, "`"+textOf(r)+"`") {
			t.Errorf("docs/troubleshooting.md does not name %q", textOf(r))
		}
	}
}

// docs/troubleshooting.md has every reason for which there is no communicator, or
// no plugin: the fixed parts of the messages in these files.
func TestDocsNameEveryRefusal(t *testing.T) {
	text := readText(t, "../docs/troubleshooting.md")
	verb := regexp.MustCompile(`%[a-z]+`)
	for path, message := range map[string]string{
		"comm.go":                     `(?:Errorf|errors\.New)\("([^"]+)"`,
		"host.c":                      `snprintf\(text, size, "([^"]+)"`,
		"loader.c":                    `snprintf\(text, size, "([^"]+)"`,
		"../semaphores/semaphores.go": `errors\.New\("([^"]+)"`,
	} {
		found := regexp.MustCompile(message).FindAllStringSubmatch(readText(t, path), -1)
		if len(found) == 0 {
			t.Errorf("%s has no message", path)
		}
		for _, m := range found {
			for _, part := range verb.Split(m[1], -1) {
				if part = strings.TrimSpace(part); len(part) > 3 && !strings.Contains(text, part) {
					t.Errorf("docs/troubleshooting.md does not have %q of %s's %q", part, path, m[1])
				}
			}
		}
	}
}
