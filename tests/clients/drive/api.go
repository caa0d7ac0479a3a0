package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const requestTimeout = 5 * time.Minute // longer is a hang

type object = map[string]any

// timings are what the server measured of a request.
type timings struct {
	PromptN         int     `json:"prompt_n"`
	PredictedN      int     `json:"predicted_n"`
	PredictedPerSec float64 `json:"predicted_per_second"`
	DraftN          int     `json:"draft_n"`
	DraftAccepted   int     `json:"draft_n_accepted"`
}

// answer is what a completion or a chat gives.
type answer struct {
	Content string
	Tokens  []int
	Timings timings
}

// send posts body, or gets where there is none, and decodes the answer into out unless that is nil.
func (srv *server) send(path string, body object, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	response, err := srv.request(ctx, path, body)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", srv.mode.name, path, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", srv.mode.name, path, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: status %d: %s", srv.mode.name, path, response.StatusCode, text)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

func (srv *server) request(ctx context.Context, path string, body object) (*http.Response, error) {
	method, content := http.MethodGet, []byte(nil)
	if body != nil {
		method = http.MethodPost
		var err error
		if content, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, srv.url+path, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(request)
}

// greedy is a request for n tokens that depend on nothing but the prompt.
func greedy(n int) object {
	return object{"temperature": 0, "ignore_eos": true, "n_predict": n, "max_tokens": n, "cache_prompt": false, "return_tokens": true}
}

// complete continues a prompt of text or of tokens.
func (srv *server) complete(prompt any, n int) (answer, error) {
	var a answer
	body := greedy(n)
	body["prompt"] = prompt
	err := srv.send("/completion", body, &a)
	if err == nil && a.Timings.PredictedN != n {
		err = fmt.Errorf("%s: %d tokens were generated, asked for %d", srv.mode.name, a.Timings.PredictedN, n)
	}
	return a, err
}

// chat asks one question. extra is added to the request.
func (srv *server) chat(question string, n int, extra object) (answer, error) {
	var reply struct {
		Choices []struct{ Message struct{ Content string } }
		Timings timings
	}
	body := greedy(n)
	body["messages"] = []object{{"role": "user", "content": question}}
	for key, value := range extra {
		body[key] = value
	}
	if err := srv.send("/v1/chat/completions", body, &reply); err != nil {
		return answer{}, err
	}
	if len(reply.Choices) != 1 || reply.Choices[0].Message.Content == "" || reply.Timings.PredictedN != n {
		return answer{}, fmt.Errorf("%s: a chat gave %d tokens in %d choices, asked for %d", srv.mode.name,
			reply.Timings.PredictedN, len(reply.Choices), n)
	}
	return answer{Content: reply.Choices[0].Message.Content, Timings: reply.Timings}, nil
}

// stream starts a completion and calls seen for every piece of text that comes. It returns what came before the stream
// ended, for whatever reason.
func (srv *server) stream(path string, body object, seen func(pieces int)) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	body["stream"] = true
	response, err := srv.request(ctx, path, body)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return "", fmt.Errorf("%s: %s: status %d: %s", srv.mode.name, path, response.StatusCode, text)
	}
	var text strings.Builder
	pieces := 0
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		var piece struct{ Content string }
		if !found || json.Unmarshal([]byte(data), &piece) != nil {
			continue
		}
		text.WriteString(piece.Content)
		pieces++
		seen(pieces)
	}
	return text.String(), lines.Err()
}

// long is a prompt of n tokens of a model's vocabulary, the same for the same seed.
func long(n, seed int) []int {
	tokens := make([]int, n)
	state := uint32(seed)
	for i := range tokens {
		state = state*1664525 + 1013904223
		tokens[i] = 300 + int(state>>16)%700
	}
	return tokens
}
