package plugin

import (
	"os"
	"strings"
	"testing"
)

// The documentation names every variable, and every algorithm that one accepts.
func TestReadmeNamesEveryVariable(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, name := range append(variableNames(), algorithmNames()...) {
		if !strings.Contains(string(text), "`"+name+"`") {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		t.Errorf("README.md does not name %s", strings.Join(missing, ", "))
	}
}
