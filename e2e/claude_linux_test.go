package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// newMessagesModel starts a model for Claude Code that needs no network: it speaks the part of the Messages API that is
// needed for a turn with one call of a tool with arguments.
func newMessagesModel(t *testing.T, tool, arguments string) *model {
	t.Helper()
	m := &model{outputs: make(chan string, 10)}
	m.URL = mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var ask struct {
			Messages []struct {
				Content json.RawMessage
			}
			Tools []struct{ Name string }
		}
		if r.Method != http.MethodPost || r.URL.Path != "/v1/messages" || json.NewDecoder(r.Body).Decode(&ask) != nil || len(ask.Messages) == 0 {
			http.NotFound(w, r)
			return
		}
		var results []struct {
			Type    string
			Content json.RawMessage
		}
		_ = json.Unmarshal(ask.Messages[len(ask.Messages)-1].Content, &results) // the content may also be a string
		block, delta, stop := `{"type":"text","text":""}`, `{"type":"text_delta","text":"done"}`, "end_turn"
		called := false
		for _, result := range results {
			if result.Type == "tool_result" {
				called = true
				m.outputs <- string(result.Content)
			}
		}
		for _, known := range ask.Tools {
			if known.Name == tool && !called {
				quoted, _ := json.Marshal(arguments)
				block, delta, stop = fmt.Sprintf(`{"type":"tool_use","id":"toolu_%d","name":%q,"input":{}}`, time.Now().UnixNano(), tool),
					fmt.Sprintf(`{"type":"input_json_delta","partial_json":%s}`, quoted), "tool_use"
			}
		}
		w.Header().Set("Content-Type", "text/event-stream")
		event := func(name, rest string) { fmt.Fprintf(w, "event: %s\ndata: {\"type\":%q%s}\n\n", name, name, rest) }
		event("message_start", `,"message":{"id":"msg_1","type":"message","role":"assistant","model":"fake","content":[],"stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}`)
		event("content_block_start", `,"index":0,"content_block":`+block)
		event("content_block_delta", `,"index":0,"delta":`+delta)
		event("content_block_stop", `,"index":0`)
		event("message_delta", fmt.Sprintf(`,"delta":{"stop_reason":%q},"usage":{"output_tokens":1}`, stop))
		event("message_stop", "")
	}))
	return m
}

// claudeProgram returns the path of Claude Code, or skips the test.
func claudeProgram(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("HOLDFAST_CLAUDE")
	if bin == "" {
		t.Skip("HOLDFAST_CLAUDE is not set: see docs/failures.md")
	}
	return bin
}

// claudeTurn has Claude Code take a turn in which its model calls the tool count of the server at url.
// It returns the result that the model gets.
func claudeTurn(t *testing.T, url, arguments string) string {
	t.Helper()
	bin := claudeProgram(t)
	m := newMessagesModel(t, "mcp__there__count", arguments)
	home := t.TempDir()
	config := filepath.Join(home, "mcp.json")
	mcptest.Check(t, os.WriteFile(config, fmt.Appendf(nil, `{"mcpServers":{"there":{"type":"http","url":%q}}}`, url), 0o600))
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, bin, "-p", "go", "--mcp-config", config, "--strict-mcp-config", "--allowedTools", "mcp__there__count", "--model", "fake")
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "HOME="+home, "CLAUDE_CONFIG_DIR="+home, "ANTHROPIC_BASE_URL="+m.URL, "ANTHROPIC_API_KEY=x",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "ENABLE_TOOL_SEARCH=false")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	select {
	case told := <-m.outputs:
		return told
	default:
		t.Fatalf("Claude Code told its model nothing: %v\n%s", err, out)
		return ""
	}
}

// claudeChoice returns the revision that Claude Code speaks with the server at url, for the table in docs/eras.md. HOLDFAST_CLAUDE names
// the program (npm, @anthropic-ai/claude-code-linux-x64 2.1.332: 400 MB, so it is not among the packages of CI).
func claudeChoice(t *testing.T, url string) string {
	t.Helper()
	var mu sync.Mutex
	spoken := ""
	revision := regexp.MustCompile(`(?i)\r\nmcp-protocol-version: (\S+)\r\n`)
	at := behind(t, url, 0, func(request string) Cut {
		if m := revision.FindStringSubmatch(request); m != nil && strings.Contains(request, "tools/call") {
			mu.Lock()
			spoken = m[1]
			mu.Unlock()
		}
		return Cut{}
	})
	if told := claudeTurn(t, at, `{"to":3,"delay_ms":10}`); !strings.Contains(told, "3") {
		t.Errorf("its model was told %s", told)
	}
	mu.Lock()
	defer mu.Unlock()
	return spoken
}

// TestClaudeCut has connections of Claude Code cut again and again while a tool reports progress.
func TestClaudeCut(t *testing.T) {
	t.Parallel()
	claudeProgram(t)
	p := serve(t, "--demo", "--retry", "100ms")
	at := behind(t, p.URL, 2, always(Cut{After: 400 * time.Millisecond}))
	if told := claudeTurn(t, at, `{"to":30,"delay_ms":100}`); !strings.Contains(told, "30") || strings.Contains(strings.ToLower(told), "err") {
		t.Errorf("its model was told %s", told)
	}
}
