package main

import (
	"bufio"
	"debug/elf"
	"fmt"
	"os"
	"slices"
	"strings"
)

// scriptInterpreter is the program that the first line of a script names; empty
// for anything else.
func scriptInterpreter(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", nil // a program may be executable and not readable
	}
	defer f.Close()
	line, _ := bufio.NewReaderSize(f, 256).ReadSlice('\n')
	if !strings.HasPrefix(string(line), "#!") {
		return "", nil
	}
	fields := strings.Fields(string(line[2:]))
	if len(fields) == 0 {
		return "", fmt.Errorf("its first line names no interpreter")
	}
	return fields[0], nil
}

// checkProgram says why ld.so would not preload the shim into an ELF program.
func checkProgram(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return nil // not for us to judge: exec will
	}
	defer f.Close()
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 {
		return fmt.Errorf("%s is a program for %v (%v), and the plugin is for x86-64", path, f.Machine, f.Class)
	}
	if !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fmt.Errorf("%s is statically linked: nothing can be preloaded into it", path)
	}
	return nil
}

// binds is how a library calls a function that it may itself define.
type binds int

const (
	bindsNone  binds = iota // no dynamic relocation names it
	bindsPLT                // through the PLT or the GOT: an earlier definition wins
	bindsLocal              // there is a relocation, but the library looks in itself first
)

// bindings tells of each function how the library reaches it.
func bindings(f *elf.File, names []string) (map[string]binds, error) {
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	how := bindsPLT
	if flags, err := f.DynValue(elf.DT_FLAGS); err == nil && len(flags) > 0 && elf.DynFlag(flags[0])&elf.DF_SYMBOLIC != 0 {
		how = bindsLocal
	}
	if symbolic, err := f.DynValue(elf.DT_SYMBOLIC); err == nil && len(symbolic) > 0 {
		how = bindsLocal
	}
	found := map[string]binds{}
	for _, section := range f.Sections {
		if section.Type != elf.SHT_RELA || section.Flags&elf.SHF_ALLOC == 0 {
			continue
		}
		data, err := section.Data()
		if err != nil {
			return nil, err
		}
		const size = 24 // of an Elf64_Rela: offset, info, addend
		for ; len(data) >= size; data = data[size:] {
			info := f.ByteOrder.Uint64(data[8:])
			kind, index := elf.R_X86_64(info&0xffffffff), info>>32
			if kind != elf.R_X86_64_JMP_SLOT && kind != elf.R_X86_64_GLOB_DAT || index == 0 || index > uint64(len(symbols)) {
				continue
			}
			if name := symbols[index-1].Name; slices.Contains(names, name) {
				found[name] = how
			}
		}
	}
	return found, nil
}

// defines reports whether the dynamic symbols have name with a definition.
func defines(f *elf.File, name string) bool {
	symbols, _ := f.DynamicSymbols()
	return slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == name && s.Section != elf.SHN_UNDEF })
}

// contains looks for a string in what the program loads read-only.
func contains(f *elf.File, text string) bool {
	for _, section := range f.Sections {
		if section.Type != elf.SHT_PROGBITS || section.Flags&elf.SHF_ALLOC == 0 {
			continue
		}
		if data, err := section.Data(); err == nil && strings.Contains(string(data), text) {
			return true
		}
	}
	return false
}
