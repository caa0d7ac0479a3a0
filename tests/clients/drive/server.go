package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startTimeout = 3 * time.Minute // a model is loaded and every pipeline compiled, on a busy machine
	endTimeout   = time.Minute     // longer is a hang
)

// mode is what is preloaded, and how it is set.
type mode struct {
	name    string
	preload bool
	env     []string
}

var (
	stock  = mode{name: "stock"}
	exact  = mode{name: "plugin", preload: true, env: []string{"GGML_VK_COMM_FP32=1"}}
	plugin = mode{name: "plugin-default", preload: true} // 16 bits on the wire for long prompts
)

// server is a running llama-server, the leader of a process group of its own.
type server struct {
	cmd  *exec.Cmd
	mode mode
	url  string
	log  string
	done chan struct{}
}

var (
	running   []*server
	runningMu sync.Mutex
)

// stopAll leaves no process behind, whatever a case came to.
func stopAll() {
	runningMu.Lock()
	defer runningMu.Unlock()
	for _, s := range running {
		syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// environment is the caller's without what would reach into the comparison.
func environment(m mode, shim string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "GGML_VK_COMM_") && !strings.HasPrefix(e, "LD_PRELOAD=") && !strings.HasPrefix(e, "LLAMA_") {
			env = append(env, e)
		}
	}
	if m.preload {
		env = append(env, "LD_PRELOAD="+shim, "GGML_VK_COMM_STATS=1")
	}
	return append(env, m.env...)
}

// start runs the server with -sm tensor and waits until it serves. At its default verbosity it keeps INFO lines of libraries, the
// plugin's among them, to itself.
func (s *settings) start(m mode, arguments ...string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	log, err := os.CreateTemp(s.work, m.name+".*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	arguments = append([]string{"--host", "127.0.0.1", "--port", fmt.Sprint(port), "-sm", "tensor", "-fa", "on", "-ngl", "99",
		"--fit", "off", "-t", "1", "--no-webui", "--offline", "-lv", "4"}, arguments...)
	srv := &server{cmd: exec.Command(s.server, arguments...), mode: m, log: log.Name(), done: make(chan struct{})}
	srv.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	srv.cmd.Env = environment(m, s.shim)
	srv.cmd.Stdout, srv.cmd.Stderr = log, log
	srv.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // no orphan of a test that timed out
	if err := srv.cmd.Start(); err != nil {
		return nil, err
	}
	runningMu.Lock()
	running = append(running, srv)
	runningMu.Unlock()
	go func() {
		srv.cmd.Wait()
		close(srv.done)
	}()
	return srv, srv.waitReady()
}

func (srv *server) waitReady() error {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		select {
		case <-srv.done:
			return fmt.Errorf("%s: the server ended before it served: %s\n%s", srv.mode.name, srv.status(), srv.tail())
		default:
		}
		if response, err := http.Get(srv.url + "/health"); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
	}
	return fmt.Errorf("%s: the server does not serve after %v\n%s", srv.mode.name, startTimeout, srv.tail())
}

func (srv *server) signal(sig syscall.Signal) error { return srv.cmd.Process.Signal(sig) }

// end waits for the server's end and says how it ended: "exit status 0", "signal: killed".
func (srv *server) end() (string, error) {
	select {
	case <-srv.done:
		return srv.status(), nil
	case <-time.After(endTimeout):
		return "", fmt.Errorf("%s: the server still runs %v after it was to end\n%s", srv.mode.name, endTimeout, srv.tail())
	}
}

func (srv *server) status() string { return srv.cmd.ProcessState.String() }

// stop ends the server as a user does, and checks that the plugin was in use if it was to be: communicators made, each of
// which reduced something.
func (srv *server) stop(communicators int) error {
	if err := srv.signal(syscall.SIGTERM); err != nil {
		return err
	}
	status, err := srv.end()
	if err != nil {
		return err
	}
	if status != "exit status 0" {
		return fmt.Errorf("%s: the server ended with %s after SIGTERM\n%s", srv.mode.name, status, srv.tail())
	}
	return srv.checkLog(communicators, true)
}

// checkLog compares the plugin's lines with what is expected. With ended, each communicator must have counted its reductions.
func (srv *server) checkLog(communicators int, ended bool) error {
	text, err := os.ReadFile(srv.log)
	if err != nil {
		return err
	}
	if !srv.mode.preload {
		if bytes.Contains(text, []byte("ggml_vk_comm: ")) {
			return errors.New("stock shows a line of the plugin's: is it preloaded by other means?")
		}
		return nil
	}
	if n := bytes.Count(text, []byte("ggml_vk_comm: AllReduce active")); n != communicators {
		return fmt.Errorf("%d communicators were in use, expected %d\n%s", n, communicators, srv.tail())
	}
	for _, bad := range []string{"aborting", "error: ", "is left to llama.cpp"} {
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "ggml_vk_comm: ") && strings.Contains(line, bad) {
				return fmt.Errorf("the plugin says: %s", strings.TrimSpace(line))
			}
		}
	}
	counted := 0
	for line := range strings.Lines(string(text)) {
		var n int
		if _, rest, found := strings.Cut(line, "ggml_vk_comm: stats: "); found {
			if _, err := fmt.Sscanf(rest, "%d reductions,", &n); err == nil && n > 0 {
				counted++
			}
		}
	}
	if ended && counted != communicators {
		return fmt.Errorf("%d of %d communicators counted reductions\n%s", counted, communicators, srv.tail())
	}
	return nil
}

// tail is the end of the log, for messages.
func (srv *server) tail() string {
	text, _ := os.ReadFile(srv.log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
