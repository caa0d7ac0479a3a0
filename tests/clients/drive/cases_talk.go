package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

// alike has the same conversation with stock and with the plugin, each in a server of its own: what talk brings home must be
// the same. It returns the plugin's.
func (s *settings) alike(communicators int, arguments []string, talk func(*server) ([]string, error)) error {
	var first []string
	for _, m := range []mode{stock, exact} {
		srv, err := s.start(m, arguments...)
		if err != nil {
			return err
		}
		said, err := talk(srv)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, srv.tail())
		}
		if err := srv.stop(communicators); err != nil {
			return err
		}
		if m.name == stock.name {
			first = said
			continue
		}
		if !slices.Equal(first, said) {
			return fmt.Errorf("the answers differ\nstock:  %q\nplugin: %q", first, said)
		}
		fmt.Printf("# %d answers alike, the first: %.60q\n", len(said), said[0])
	}
	return nil
}

// text is an answer as one string, for comparison: with the tokens where the server tells them.
func (a answer) text() string { return fmt.Sprint(a.Content, a.Tokens) }

// Users of other implementations saw generation slow down after a long prompt and stay slow: chat after the second long prompt
// must be as fast as before the first. Speeds are compared within one run, the best of several chats each, since other load
// only ever makes a chat slower.
func longPrompts(s *settings) error {
	const promptTokens, chats, chatTokens, least = 1500, 5, 32, 0.8
	talk := func(srv *server) ([]string, error) {
		var said []string
		var speeds []float64
		for round := range 3 {
			if round > 0 {
				a, err := srv.complete(long(promptTokens, round), 4)
				if err != nil {
					return nil, err
				}
				if a.Timings.PromptN < promptTokens {
					return nil, fmt.Errorf("%d tokens of the prompt were processed, expected %d", a.Timings.PromptN, promptTokens)
				}
				said = append(said, a.text())
			}
			best := 0.0
			// Where other load has slowed down all of them, more are asked: what stays slow is slow in these as well.
			for i := 0; i <= chats || (round == 2 && best < least*speeds[0] && i <= 5*chats); i++ {
				a, err := srv.chat(fmt.Sprintf("question %d of %d", i, round), chatTokens, nil)
				if err != nil {
					return nil, err
				}
				if i <= chats {
					said = append(said, a.text())
				}
				if i > 0 { // the first finds pipelines that are not yet compiled
					best = max(best, a.Timings.PredictedPerSec)
				}
			}
			speeds = append(speeds, best)
		}
		fmt.Printf("# %s: %.1f tokens/s before the first long prompt, %.1f after it, %.1f after the second: %.2f of the first\n",
			srv.mode.name, speeds[0], speeds[1], speeds[2], speeds[2]/speeds[0])
		if srv.mode.preload && speeds[2] < least*speeds[0] {
			return nil, fmt.Errorf("generation is at %.2f of its first speed, expected at least %.2f", speeds[2]/speeds[0], least)
		}
		return said, nil
	}
	// In one batch, so that its tensors are beyond 1 MiB: cut to rounds, and 16 bits on the wire unless told otherwise.
	arguments := []string{"-m", s.model, "-c", "2048", "-b", "2048", "-ub", "2048", "-np", "1"}
	if err := s.alike(1, arguments, talk); err != nil {
		return err
	}
	srv, err := s.start(plugin, arguments...)
	if err != nil {
		return err
	}
	if _, err := talk(srv); err != nil {
		return err
	}
	return srv.stop(1)
}

// Two slots generate at the same time.
func slots(s *settings) error {
	talk := func(srv *server) ([]string, error) {
		const n = 48
		said, errs := make([]string, 2), make([]error, 2)
		first, last := make([]time.Time, 2), make([]time.Time, 2)
		var both sync.WaitGroup
		for i := range said {
			both.Go(func() {
				body := greedy(n)
				body["prompt"] = long(100+200*i, 7+i)
				said[i], errs[i] = srv.stream("/completion", body, func(pieces int) {
					if pieces == 1 {
						first[i] = time.Now()
					}
					last[i] = time.Now()
				})
			})
		}
		both.Wait()
		for i, err := range errs {
			if err != nil {
				return nil, err
			}
			if said[i] == "" {
				return nil, fmt.Errorf("slot %d said nothing", i)
			}
		}
		if !first[0].Before(last[1]) || !first[1].Before(last[0]) {
			return nil, fmt.Errorf("the slots did not generate at the same time")
		}
		return said, nil
	}
	return s.alike(1, []string{"-m", s.model, "-c", "2048", "-np", "2"}, talk)
}

// A draft model beside the target: two communicators on the same devices, used in turn. The draft has the target's weights,
// so that its guesses are taken, several a step.
func draft(s *settings) error {
	talk := func(srv *server) ([]string, error) {
		var said []string
		for i := range 3 {
			a, err := srv.chat(fmt.Sprint("say something, number ", i), 48, nil)
			if err != nil {
				return nil, err
			}
			if a.Timings.DraftAccepted == 0 {
				return nil, fmt.Errorf("of %d drafted tokens none was accepted: is the draft in use?", a.Timings.DraftN)
			}
			said = append(said, fmt.Sprint(a.text(), a.Timings.DraftN, a.Timings.DraftAccepted))
		}
		return said, nil
	}
	return s.alike(2, []string{"-m", s.model, "-md", s.model, "--spec-type", "draft-simple", "--spec-draft-n-max", "6",
		"-ngld", "99", "-c", "1024", "-np", "1"}, talk)
}

// Embeddings of texts shorter and longer than a physical batch.
func embeddings(s *settings) error {
	talk := func(srv *server) ([]string, error) {
		var said []string
		for i := range 3 {
			var reply struct {
				Data []struct{ Embedding []json.Number }
			}
			if err := srv.send("/v1/embeddings", object{"input": long(10+200*i, i)}, &reply); err != nil {
				return nil, err
			}
			if len(reply.Data) != 1 || len(reply.Data[0].Embedding) == 0 {
				return nil, fmt.Errorf("no embedding in the answer")
			}
			said = append(said, fmt.Sprint(reply.Data[0].Embedding))
		}
		return said, nil
	}
	return s.alike(1, []string{"-m", s.model, "-c", "1024", "-np", "1", "--embedding", "--pooling", "mean"}, talk)
}

// The server frees the model when idle and loads it again at the next request: the communicator ends and a new one is made in
// the same process, on buffers whose handles have been used before.
func sleep(s *settings) error {
	const cycles = 3
	talk := func(srv *server) ([]string, error) {
		var said []string
		for i := range cycles {
			a, err := srv.chat("are you awake", 16, nil)
			if err != nil {
				return nil, err
			}
			said = append(said, a.text())
			if i == cycles-1 {
				break
			}
			err = srv.until("asleep", func() (bool, error) {
				var props struct {
					IsSleeping bool `json:"is_sleeping"`
				}
				err := srv.send("/props", nil, &props)
				return props.IsSleeping, err
			})
			if err != nil {
				return nil, err
			}
		}
		return said, nil
	}
	return s.alike(cycles, []string{"-m", s.model, "-c", "512", "-np", "1", "--sleep-idle-seconds", "1"}, talk)
}

// until waits for a state of the server.
func (srv *server) until(state string, reached func() (bool, error)) error {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if yes, err := reached(); err != nil || yes {
			return err
		}
	}
	return fmt.Errorf("%s: the server is not %s after %v", srv.mode.name, state, startTimeout)
}
