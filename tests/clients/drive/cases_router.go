package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// In router mode llama-server runs a process of its own for each model, which inherits the preload.

const routed = "m" // the name of the model under the router

func (s *settings) startRouter(m mode) (*server, error) {
	models := filepath.Join(s.work, "models")
	if err := os.MkdirAll(models, 0o755); err != nil {
		return nil, err
	}
	model, err := filepath.Abs(s.model)
	if err != nil {
		return nil, err
	}
	if err := os.Symlink(model, filepath.Join(models, routed+".gguf")); err != nil && !os.IsExist(err) {
		return nil, err
	}
	return s.start(m, "--models-dir", models, "-c", "2048", "-np", "1")
}

// waitModel waits until the router says that the model is in a state.
func (srv *server) waitModel(state string) error {
	return srv.until("at "+state, func() (bool, error) {
		var reply struct {
			Data []struct {
				ID     string
				Status struct{ Value string }
			}
		}
		if err := srv.send("/models", nil, &reply); err != nil {
			return false, err
		}
		for _, m := range reply.Data {
			if m.ID == routed {
				return m.Status.Value == state, nil
			}
		}
		return false, fmt.Errorf("the router does not list the model %s", routed)
	})
}

// Loading and unloading on request, each time in a new process.
func router(s *settings) error {
	said := map[string]string{}
	const cycles = 3
	for _, m := range []mode{stock, exact} {
		srv, err := s.startRouter(m)
		if err != nil {
			return err
		}
		for range cycles {
			if err := srv.send("/models/load", object{"model": routed}, nil); err != nil {
				return err
			}
			if err := srv.waitModel("loaded"); err != nil {
				return fmt.Errorf("%w\n%s", err, srv.tail())
			}
			a, err := srv.chat("who routes", 16, object{"model": routed})
			if err != nil {
				return err
			}
			said[m.name] += a.text()
			if err := srv.send("/models/unload", object{"model": routed}, nil); err != nil {
				return err
			}
			if err := srv.waitModel("unloaded"); err != nil {
				return err
			}
		}
		if err := srv.stop(cycles); err != nil {
			return err
		}
	}
	if said[stock.name] != said[exact.name] {
		return fmt.Errorf("the answers differ\nstock:  %q\nplugin: %q", said[stock.name], said[exact.name])
	}
	fmt.Printf("# %d models loaded and unloaded, answers alike: %.60q\n", cycles, said[exact.name])
	return nil
}

// children are the processes that a process has started, from whichever of its threads.
func children(pid int) ([]int, error) {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	var found []int
	for _, list := range lists {
		text, _ := os.ReadFile(list) // a thread may have ended
		for field := range strings.FieldsSeq(string(text)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				return nil, err
			}
			found = append(found, child)
		}
	}
	return found, nil
}

func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(rest, "Z") // whoever took it over may not wait for it
}

// Kills during generation: of the model's process, after which the router must serve again, and of the router, after which the
// model's process must end too; and a SIGTERM of the router.
func routerKills(s *settings) error {
	for _, m := range []mode{stock, exact} {
		srv, err := s.startRouter(m)
		if err != nil {
			return err
		}
		before, err := srv.chat("who is killed", 16, object{"model": routed})
		if err != nil {
			return fmt.Errorf("%w\n%s", err, srv.tail())
		}
		child, ended, err := srv.generatingChild()
		if err != nil {
			return err
		}
		syscall.Kill(child, syscall.SIGKILL)
		if err := srv.waitModel("unloaded"); err != nil {
			return err
		}
		<-ended
		after, err := srv.chat("who is killed", 16, object{"model": routed})
		if err != nil {
			return fmt.Errorf("after the model's process was killed: %w\n%s", err, srv.tail())
		}
		if before.text() != after.text() {
			return fmt.Errorf("%s: another answer after the model's process was killed: %q, %q", m.name, before.text(), after.text())
		}
		fmt.Printf("# %s: the model's process was killed, and another answers\n", m.name)

		if child, _, err = srv.generatingChild(); err != nil {
			return err
		}
		srv.signal(syscall.SIGKILL)
		if _, err := srv.end(); err != nil {
			return err
		}
		if err := gone(child); err != nil {
			return fmt.Errorf("%s: after SIGKILL of the router: %w\n%s", m.name, err, srv.tail())
		}
		if err := srv.checkLog(2, false); err != nil {
			return err
		}
		fmt.Printf("# %s: the router was killed, and the model's process has ended\n", m.name)
	}
	return s.routerTerminated()
}

func (s *settings) routerTerminated() error {
	ends := map[string]string{}
	for _, m := range []mode{stock, exact} {
		srv, err := s.startRouter(m)
		if err != nil {
			return err
		}
		child, _, err := srv.generatingChild()
		if err != nil {
			return err
		}
		srv.signal(syscall.SIGTERM)
		if ends[m.name], err = srv.end(); err != nil {
			return err
		}
		if err := gone(child); err != nil {
			return fmt.Errorf("%s: after SIGTERM of the router: %w", m.name, err)
		}
		if err := srv.checkLog(1, false); err != nil {
			return err
		}
	}
	if ends[stock.name] != ends[exact.name] {
		return fmt.Errorf("SIGTERM of the router: stock ends with %s, with the plugin %s", ends[stock.name], ends[exact.name])
	}
	fmt.Printf("# SIGTERM of the router during generation: %s, as stock\n", ends[exact.name])
	return nil
}

// generatingChild has the router's model generate, and returns the process that does.
func (srv *server) generatingChild() (int, <-chan error, error) {
	ended, err := srv.generating(routed)
	if err != nil {
		return 0, nil, err
	}
	found, err := children(srv.cmd.Process.Pid)
	if err != nil {
		return 0, nil, err
	}
	if len(found) != 1 {
		return 0, nil, fmt.Errorf("%s: the router has %d children, expected one", srv.mode.name, len(found))
	}
	return found[0], ended, nil
}

func gone(pid int) error {
	for deadline := time.Now().Add(endTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if !alive(pid) {
			return nil
		}
	}
	return fmt.Errorf("the model's process still runs after %v", endTimeout)
}
