// Command vkcomm runs llama.cpp with the AllReduce plugin preloaded, says what
// this machine's devices can do for it, measures it, and plots the measurements.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
)

const description = `AllReduce for llama.cpp on Vulkan: run it, ask what the devices can do, measure.

Examples:
  vkcomm run -- llama-server -m model.gguf -sm tensor -fa on
  vkcomm run --fp32 --stats llama-bench -m model.gguf -sm tensor -fa 1
  vkcomm doctor --llama /opt/llama.cpp/bin
  vkcomm bench -b 4K -e 64M -f 4 -J result.json
  vkcomm plot result.json -o result.svg`

type cli struct {
	Version versionFlag `help:"Print version, commit, ggml ABI and Vulkan headers, and exit." short:"V"`

	Run        runCmd        `cmd:"" help:"Run a command with the plugin preloaded."`
	Doctor     doctorCmd     `cmd:"" help:"Show devices, links, what a communicator would choose, and what stands in the way."`
	Bench      benchCmd      `cmd:"" help:"Measure AllReduce on this machine's devices, in the manner of nccl-tests."`
	Plot       plotCmd       `cmd:"" help:"Plot results of bench."`
	Completion completionCmd `cmd:"" help:"Print a completion script for bash."`
	ProbeGgml  probeGgmlCmd  `cmd:"" hidden:""`
}

// Exit statuses. run has those of env(1): 125 for a failure of its own, 126 for
// a command that cannot be run with the plugin, 127 for one that is not found.
const (
	exitFailure = 1
	exitUsage   = 2
)

// exitError is an error with an exit status of its own; an empty text prints
// nothing.
type exitError struct {
	status int
	text   string
}

func (e *exitError) Error() string { return e.text }

func newParser(c *cli, out, err io.Writer, exit func(int)) *kong.Kong {
	return kong.Must(c, kong.Name("vkcomm"), kong.Description(description), kong.Writers(out, err), kong.Exit(exit),
		kong.ConfigureHelp(kong.HelpOptions{WrapUpperBound: 110}))
}

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// stopped is panicked with by kong's --help and --version, so that tests
// survive them.
type stopped int

func execute(args []string, out, errs io.Writer) (status int) {
	defer func() {
		if s := recover(); s != nil {
			code, ok := s.(stopped)
			if !ok {
				panic(s)
			}
			status = int(code)
		}
	}()
	var c cli
	parser := newParser(&c, out, errs, func(code int) { panic(stopped(code)) })
	if len(args) == 0 {
		args = []string{"--help"}
	}
	context, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(errs, "vkcomm: %v (see vkcomm --help)\n", err)
		if args[0] == "run" {
			return exitRunFailure
		}
		return exitUsage
	}
	err = context.Run(&output{out, errs})
	var own *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &own):
		status = own.status
	default:
		status = exitFailure
	}
	if text := err.Error(); text != "" {
		fmt.Fprintf(errs, "vkcomm: %s\n", text)
	}
	return status
}

// output is where subcommands print: results, and everything else.
type output struct{ out, err io.Writer }
