package main

import (
	"fmt"
	"syscall"
	"time"
)

// generating starts a long generation and returns when its first tokens have come. The channel gives what the stream came to.
func (srv *server) generating(model string) (<-chan error, error) {
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		body := greedy(100000)
		body["prompt"] = long(50, 3)
		if model != "" {
			body["model"] = model
		}
		_, err := srv.stream("/completion", body, func(pieces int) {
			if pieces == 5 {
				close(started)
			}
		})
		ended <- err
	}()
	select {
	case <-started:
		return ended, nil
	case err := <-ended:
		return nil, fmt.Errorf("%s: generation ended before it was to be interrupted: %v\n%s", srv.mode.name, err, srv.tail())
	case <-time.After(requestTimeout):
		return nil, fmt.Errorf("%s: nothing is generated", srv.mode.name)
	}
}

// Signals in the middle of generation: the server must end, as stock does.
func signals(s *settings) error {
	for _, c := range []struct {
		name    string
		signals []syscall.Signal
	}{
		{"SIGINT", []syscall.Signal{syscall.SIGINT}},
		{"SIGTERM", []syscall.Signal{syscall.SIGTERM}},
		{"SIGINT twice", []syscall.Signal{syscall.SIGINT, syscall.SIGINT}}, // the second ends llama-server in the handler
		{"SIGKILL", []syscall.Signal{syscall.SIGKILL}},
	} {
		ends := map[string]string{}
		for _, m := range []mode{stock, exact} {
			srv, err := s.start(m, "-m", s.model, "-c", "2048", "-np", "1")
			if err != nil {
				return err
			}
			if _, err := srv.generating(""); err != nil {
				return err
			}
			for _, sig := range c.signals {
				if err := srv.signal(sig); err != nil {
					break // ended already
				}
			}
			if ends[m.name], err = srv.end(); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if err := srv.checkLog(1, c.name == "SIGINT" || c.name == "SIGTERM"); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		if ends[stock.name] != ends[exact.name] {
			return fmt.Errorf("%s: stock ends with %s, with the plugin %s", c.name, ends[stock.name], ends[exact.name])
		}
		fmt.Printf("# %s during generation: %s, as stock\n", c.name, ends[exact.name])
	}
	return nil
}
