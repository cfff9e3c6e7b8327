package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// TestTokenOfAnotherServer has a token of a server that the user has never named. The program sends no request
// there, and no header, unless the user agrees.
func TestTokenOfAnotherServer(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []string
	evil := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.Header.Get("Authorization"))
		http.Error(w, "no", http.StatusNotFound)
	}))
	sent := func() (all []string) {
		mu.Lock()
		defer mu.Unlock()
		all, got = got, nil
		return all
	}
	token := "hf1." + base64.RawURLEncoding.EncodeToString([]byte(`{"url":"`+evil+`/mcp","calls":[{"id":"a","token":"x"}]}`))
	const header = "Authorization: Bearer secret"
	states := t.TempDir()
	run := func(stdin io.Reader, out io.Writer, args ...string) {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), soon)
		defer stop()
		cmd := exec.CommandContext(ctx, "holdfast", args...)
		cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+states, "HOLDFAST_HEADER="+header)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, out, out
		_ = cmd.Run() // the command fails, as that server knows no call
		if ctx.Err() != nil {
			t.Errorf("%q did not end", args)
		}
	}
	for _, command := range []string{"status", "cancel", "resume"} {
		for _, from := range []string{token, "-"} {
			var out bytes.Buffer
			run(strings.NewReader(token), &out, command, from)
			if all := sent(); len(all) > 0 || !strings.Contains(out.String(), "give --server "+evil) {
				t.Errorf("%s %.3s: it sent %q, and said: %s", command, from, all, out.String())
			}
		}
		var out bytes.Buffer
		run(strings.NewReader(""), &out, command, "--server", "https://mcp.example.com", token)
		if all := sent(); len(all) > 0 || !strings.Contains(out.String(), "not at https://mcp.example.com") {
			t.Errorf("%s of another server: it sent %q, and said: %s", command, all, out.String())
		}
	}
	ask := func(answer string) string { // at a terminal
		t.Helper()
		term := newPTY(t)
		defer term.main.Close()
		done, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for !strings.Contains(term.text(), "[y/N]: ") {
				select {
				case <-over:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
			_, _ = term.main.WriteString(answer)
		}()
		run(term.file, term.file, "status", token)
		close(over)
		<-done
		return term.shown()
	}
	for _, answer := range []string{"n\n", "\n"} {
		if shown := ask(answer); len(sent()) > 0 || !strings.Contains(shown, "nothing was sent") {
			t.Errorf("after %q something was sent: %s", answer, shown)
		}
	}
	if shown := ask("y\n"); len(sent()) == 0 {
		t.Errorf("after yes nothing was sent: %s", shown)
	}
	var out bytes.Buffer
	run(strings.NewReader(""), &out, "status", token) // the server is known from now on
	if all := sent(); len(all) == 0 || all[0] != "Bearer secret" {
		t.Errorf("it sent %q, and said: %s", all, out.String())
	}
	states = t.TempDir()
	out.Reset()
	run(strings.NewReader(""), &out, "status", "--server", evil, token)
	if len(sent()) == 0 {
		t.Errorf("with --server nothing was sent: %s", out.String())
	}
}
