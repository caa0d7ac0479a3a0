package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct{}

// Help is the long text of vkcomm completion --help.
func (*completionCmd) Help() string {
	return "Example:\n  vkcomm completion > /usr/share/bash-completion/completions/vkcomm"
}

// Run prints a script that is made of the very model that parses the flags.
func (*completionCmd) Run(app *kong.Kong, o *output) error {
	var names []string
	var cases strings.Builder
	for _, command := range app.Model.Children {
		if command.Hidden {
			continue
		}
		names = append(names, command.Name)
		fmt.Fprintf(&cases, "        %s) words='%s' ;;\n", command.Name, strings.Join(flagNames(command), " "))
	}
	_, err := fmt.Fprintf(o.out, `# bash completion of vkcomm, printed by "vkcomm completion"
_vkcomm() {
    local word=${COMP_WORDS[COMP_CWORD]} words i
    case ${COMP_WORDS[1]} in
%s        *) words='%s --help --version' ;;
    esac
    [ "$COMP_CWORD" = 1 ] && words='%[2]s --help --version'
    if [ "${COMP_WORDS[1]}" = run ]; then
        for ((i = 2; i < COMP_CWORD; i++)); do
            if [ "${COMP_WORDS[i]}" = -- ]; then
                COMPREPLY=($(compgen -c -- "$word"))
                return
            fi
        done
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
}
complete -o filenames -F _vkcomm vkcomm
`, cases.String(), strings.Join(names, " "))
	return err
}

// flagNames are the long flags of a subcommand, as they are typed.
func flagNames(command *kong.Node) (names []string) {
	for _, flag := range command.Flags {
		names = append(names, "--"+flag.Name)
		if flag.Tag.Negatable != "" {
			names = append(names, "--no-"+flag.Name)
		}
	}
	return names
}
