// Command drive runs an unmodified llama-server without and with the plugin, asks both the same over HTTP, and compares what
// they answer and how they end.
//
//	drive --server PATH --shim PATH --model PATH [--embedding-model PATH] CASE
//
// It is started by build/ranks, which says on which devices. One case a run; the exit status is 0 only if it held.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// settings are what all cases are told.
type settings struct {
	server, shim, model string
	work                string // logs and models of this run; removed when the case holds
}

var cases = map[string]func(*settings) error{
	"long-prompts": longPrompts,
	"slots":        slots,
	"draft":        draft,
	"embeddings":   embeddings,
	"sleep":        sleep,
	"signals":      signals,
	"router":       router,
	"router-kills": routerKills,
}

func main() {
	s := &settings{}
	flag.StringVar(&s.server, "server", "", "llama-server")
	flag.StringVar(&s.shim, "shim", "", "the object to preload")
	flag.StringVar(&s.model, "model", "", "a model with a vocabulary")
	flag.Parse()
	run := cases[flag.Arg(0)]
	if run == nil || flag.NArg() != 1 || s.server == "" || s.shim == "" || s.model == "" {
		names := slices.Sorted(maps.Keys(cases))
		fmt.Fprintf(os.Stderr, "drive: needs --server, --shim, --model and one case of %s; got '%s'\n",
			strings.Join(names, ", "), strings.Join(flag.Args(), " "))
		os.Exit(2)
	}
	var err error
	if s.work, err = os.MkdirTemp("", "drive."); err == nil {
		err = run(s)
	}
	stopAll()
	if err != nil {
		fmt.Printf("not ok %s: %v\n", flag.Arg(0), err)
		fmt.Printf("# logs are in %s\n", s.work)
		os.Exit(1)
	}
	os.RemoveAll(s.work)
	fmt.Printf("ok %s\n", flag.Arg(0))
}
