package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pciLink is what sysfs says of a device's link.
type pciLink struct {
	Speed    string `json:"speed"` // as 16.0 GT/s
	Width    int    `json:"width"`
	MaxSpeed string `json:"maxSpeed"`
	MaxWidth int    `json:"maxWidth"`
	Node     int    `json:"numaNode"` // -1: none
}

func (l *pciLink) degraded() bool {
	return l.Width > 0 && l.Width < l.MaxWidth || l.MaxSpeed != "" && l.Speed != l.MaxSpeed
}

// readLink returns nil where sysfs has no such device or says nothing.
func readLink(sys, pci string) *pciLink {
	if pci == "" {
		return nil
	}
	read := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(sys, "bus/pci/devices", pci, name))
		return strings.TrimSuffix(strings.TrimSpace(string(text)), " PCIe")
	}
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(read(name)); err == nil {
			return n
		}
		return otherwise
	}
	l := &pciLink{read("current_link_speed"), number("current_link_width", 0), read("max_link_speed"), number("max_link_width", 0), number("numa_node", -1)}
	if l.Speed == "" {
		return nil
	}
	return l
}
