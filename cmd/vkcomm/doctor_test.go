package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDoctorOnDevices(t *testing.T) {
	needVulkan(t)
	lib := fakePlugin(t)
	status, out, errs := vkcomm("doctor", "--devices", "0,0", "--json", "--lib", lib)
	var d diagnosis
	must(t, json.Unmarshal([]byte(out), &d))
	if status != 0 || !d.OK {
		t.Errorf("status %d, %s, findings %v", status, errs, d.Findings)
	}
	if len(d.Matrix) != 2 || d.Matrix[0][1].Ordering == "none" || d.Matrix[0][1].Staging != "host" || d.Matrix[0][1].GBps <= 0 || d.Matrix[1][0].GBps <= 0 {
		t.Errorf("matrix %+v", d.Matrix)
	}
	if d.Communicator == nil || d.Communicator.SelfTest != "passed" || !strings.HasSuffix(d.Communicator.Rules, "-max") {
		t.Errorf("communicator %+v", d.Communicator)
	}
	if d.Devices[0].ImportAlign == 0 || d.Devices[0].ImportMiB < 16 || len(d.Devices[0].Heaps) == 0 || len(d.Devices[0].Queues) == 0 {
		t.Errorf("device %+v", d.Devices[0])
	}
	for _, f := range d.Findings {
		if f.What == "" || f.Do == "" {
			t.Errorf("finding %+v", f)
		}
	}
	status, text, _ := vkcomm("doctor", "--devices", "0,0", "--quick", "--lib", lib)
	if status != 0 || !strings.Contains(text, d.Devices[0].DeviceUUID) || !strings.Contains(text, "ok: nothing stands in the way") {
		t.Errorf("status %d: %s", status, text)
	}
}

func TestDoctorFindsProblems(t *testing.T) {
	needVulkan(t)
	for _, c := range []struct {
		args []string
		want int
		says string
	}{
		{[]string{"--devices", "0"}, exitFailure, "one rank"},
		{[]string{"--lib", "/nonexistent"}, exitFailure, "--lib"},
		{[]string{"--devices", "99"}, exitUsage, "no device 99"},
		{[]string{"--llama", "/nonexistent"}, exitFailure, "llama.cpp"},
	} {
		status, out, errs := vkcomm(append([]string{"doctor", "--quick"}, c.args...)...)
		if status != c.want || !strings.Contains(out+errs, c.says) {
			t.Errorf("%q: status %d, want %d; %q", c.args, status, c.want, out+errs)
		}
	}
}

func TestReadLink(t *testing.T) {
	sys := t.TempDir()
	dir := filepath.Join(sys, "bus/pci/devices/0000:01:00.0")
	must(t, os.MkdirAll(dir, 0o755))
	for name, text := range map[string]string{"current_link_speed": "8.0 GT/s PCIe", "current_link_width": "4", "max_link_speed": "16.0 GT/s PCIe",
		"max_link_width": "16", "numa_node": "1"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644))
	}
	got := readLink(sys, "0000:01:00.0")
	if diff := cmp.Diff(&pciLink{"8.0 GT/s", 4, "16.0 GT/s", 16, 1}, got); diff != "" || !got.degraded() {
		t.Error(diff)
	}
	if readLink(sys, "0000:02:00.0") != nil || readLink(sys, "") != nil {
		t.Error("a link of a device that is not there")
	}
	if (&pciLink{"8.0 GT/s", 16, "8.0 GT/s", 16, 0}).degraded() {
		t.Error("degraded")
	}
}

func TestRules(t *testing.T) {
	times := []timesLine{
		{16 << 10, map[string]float64{"singleshot": 10, "pipeline": 9.5, "relay": 5}},
		{64 << 10, map[string]float64{"singleshot": 20, "pipeline": 19}},
		{256 << 10, map[string]float64{"singleshot": 80, "pipeline": 40}},
		{1 << 20, map[string]float64{"singleshot": 300, "pipeline": 100}},
	}
	if got, want := rules(times).String(), "relay:0-32K,singleshot:32K-128K,pipeline:128K-max"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
