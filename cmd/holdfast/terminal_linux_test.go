package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
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

	"golang.org/x/sys/unix"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// evil is a text of a server. It sets the title and rings, paints (C0, then C1), takes a
// letter back, and turns the direction of writing. It begins with { and ends with X}.
const (
	evil      = "{\x1b]0;pwned\x07 \x1b[31m \u009b32m \x7f \u202e \u2066 \r X}"
	evilShown = `{\u001b]0;pwned\u0007 \u001b[31m \u009b32m \u007f \u202e \u2066 \u000d X}`
	evilLine  = `{\u001b]0;pwned\u0007 \u001b[31m \u009b32m \u007f \u202e \u2066 X}` // evil on one line
)

// evilJSON is evil within a JSON text, which leaves some characters unescaped.
var evilJSON = strings.NewReplacer("\x1b", `\u001b`, "\x07", `\u0007`, "\r", `\r`).Replace(evil)

// evilServer is an MCP server with evil in each text that it sends.
func evilServer(t *testing.T) string {
	t.Helper()
	answered := make(chan struct{}, 8)
	say := func(what string) string { return strings.ReplaceAll(what, "EVIL", evilJSON) }
	events := func(w http.ResponseWriter, messages ...string) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, one := range messages {
			fmt.Fprintf(w, "data: %s\n\n", say(one))
			_ = http.NewResponseController(w).Flush()
		}
	}
	answers := func(members string) mcptest.Does {
		return func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			mcptest.JSON(w, say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, members)))
		}
	}
	url := mcptest.Serve(t, mcptest.Methods{
		"response": func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) {
			answered <- struct{}{}
			w.WriteHeader(http.StatusAccepted)
		},
		"initialize": answers(`"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"EVIL","version":"EVIL"},"instructions":"EVIL"}`),
		"tools/list": answers(`"result":{"tools":[{"name":"EVIL","description":"EVIL","inputSchema":{"type":"object","properties":{"EVIL":{"type":"EVIL"}}}},` +
			`{"name":"result"},{"name":"fails"},{"name":"error"},{"name":"progress"},{"name":"asks"},{"name":"link"},{"name":"http"}]}`),
		"tools/call result": answers(`"result":{"content":[{"type":"text","text":"EVIL"}]}`),
		"tools/call link":   answers(`"result":{"content":[{"type":"resource_link","name":"EVIL","uri":"x:EVIL"},{"type":"image","mimeType":"EVIL","data":""}]}`),
		"tools/call fails":  answers(`"result":{"isError":true,"content":[{"type":"text","text":"EVIL"}]}`),
		"tools/call error":  answers(`"error":{"code":-32000,"message":"EVIL"}`),
		"tools/call http": func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) {
			http.Error(w, evil, http.StatusBadRequest)
		},
		"tools/call progress": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			progress := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":"EVIL"}}`, jsonrpc.Field(m.Params, "_meta", "progressToken"))
			events(w, progress, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"EVIL","data":"EVIL"}}`, mcptest.Text(m, "done"))
		},
		"tools/call asks": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			events(w, `{"jsonrpc":"2.0","id":"q1","method":"elicitation/create","params":{"mode":"url","message":"EVIL","url":"http://h/EVIL","elicitationId":"1"}}`)
			<-answered
			events(w, `{"jsonrpc":"2.0","id":"q2","method":"elicitation/create","params":{"message":"EVIL","requestedSchema":{"type":"object","properties":{`+
				`"EVIL":{"type":"string","title":"EVIL","description":"EVIL b","enum":["EVIL","b"],"default":"EVIL"}}}}}`)
			<-answered
			events(w, mcptest.Text(m, "done"))
		},
	})
	t.Cleanup(func() { close(answered) })
	return url
}

// A pty is a pseudo-terminal. shown returns the text that was written to its file.
type pty struct {
	file *os.File
	main *os.File

	mu    sync.Mutex
	bytes bytes.Buffer
	over  chan struct{}
}

func newPTY(t *testing.T) *pty {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals: %v", err)
	}
	mcptest.Check(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n := mcptest.Must(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
	name := fmt.Sprintf("/dev/pts/%d", n)
	file := mcptest.Must(os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0))(t)
	// The terminal is wide, as the program cuts text that does not fit on a line.
	mcptest.Check(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 500}))
	term := &pty{file: file, main: os.NewFile(uintptr(fd), "ptmx"), over: make(chan struct{})}
	go func() {
		defer close(term.over)
		buf := make([]byte, 4096)
		for {
			n, err := term.main.Read(buf)
			term.mu.Lock()
			term.bytes.Write(buf[:n])
			term.mu.Unlock()
			if err != nil {
				return // EIO: no program has the terminal open
			}
		}
	}()
	return term
}

// shown returns all text on the terminal, after the programs that had it open have ended.
func (term *pty) shown() string {
	_ = term.file.Close()
	<-term.over
	_ = term.main.Close()
	return term.text()
}

func (term *pty) text() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.bytes.String()
}

// raw returns a terminal's command from the server that is unchanged in a text.
func raw(text string) string {
	for _, one := range []string{"\x1b]", "\x07", "\x1b[31m", "\u009b", "\x7f", "\u202e", "\u2066", " \r X"} {
		if strings.Contains(text, one) {
			return one
		}
	}
	return ""
}

// TestTerminal runs the commands at a terminal, and with pipes in its place, with a
// server that puts terminals' commands into each text.
func TestTerminal(t *testing.T) {
	t.Parallel()
	url := evilServer(t)
	for name, c := range map[string]struct {
		args  []string
		stdin string
		want  string
	}{
		"tools":    {args: []string{"tools", url}, want: evilLine + " [" + evilLine + ":" + evilLine + "]"},
		"json":     {args: []string{"tools", "--json", url}, want: `\u009b32m \u007f \u202e`},
		"result":   {args: []string{"call", url, "result"}, want: evilShown},
		"rawly":    {args: []string{"call", "--json", url, "result"}, want: `\u009b32m \u007f \u202e`},
		"link":     {args: []string{"call", url, "link"}, want: "(a link: " + evilLine},
		"fails":    {args: []string{"call", url, "fails"}, want: "failed: " + evilShown},
		"error":    {args: []string{"call", url, "error"}, want: "holdfast: " + evilShown},
		"http":     {args: []string{"call", url, "http"}, want: "holdfast: " + evilShown},
		"unknown":  {args: []string{"call", url, "pwned"}, want: "did you mean " + evilShown},
		"unasked":  {args: []string{"call", "--log-level", "debug", url, "progress"}, want: evilLine},
		"progress": {args: []string{"call", url, "progress"}, want: evilLine + ": " + evilLine},
		"asks":     {args: []string{"call", "-i", url, "asks"}, stdin: "y\n1\n", want: "1) " + evilLine},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := newPTY(t)
			defer term.main.Close()
			runOn(t, term.file, c.stdin, c.args...)
			shown := term.shown()
			if one := raw(shown); one != "" {
				t.Errorf("the terminal got %q raw in:\n%q", one, shown)
			}
			if !strings.Contains(shown, c.want) {
				t.Errorf("it does not show %s:\n%s", c.want, shown)
			}
			var pipe bytes.Buffer
			runOn(t, &pipe, c.stdin, c.args...)
			if !strings.Contains(pipe.String(), "\u009b32m \x7f \u202e") {
				t.Errorf("a pipe did not get the bytes as they are:\n%q", pipe.String())
			}
		})
	}
}

// servingURL finds the URL of the server in its log.
var servingURL = regexp.MustCompile(`(http://[0-9.:]+/mcp)"?[ ,]`)

// TestTerminalLog lets holdfast serve log a process's stderr on a terminal.
func TestTerminalLog(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			term := newPTY(t)
			defer term.main.Close()
			file := filepath.Join(t.TempDir(), "evil")
			mcptest.Check(t, os.WriteFile(file, []byte(evil+"\xff\n"), 0o600))
			ctx, stop := context.WithTimeout(t.Context(), soon)
			defer stop()
			cmd := exec.CommandContext(ctx, "holdfast", "serve", "--listen", "127.0.0.1:0", "--log-format", format,
				"--", "sh", "-c", `cat "$0" >&2; cat >/dev/null`, file)
			cmd.Stderr = term.file
			mcptest.Check(t, cmd.Start())
			wait := func(until func(text string) bool) {
				t.Helper()
				for !until(term.text()) {
					if ctx.Err() != nil {
						t.Fatalf("it shows only %q", term.text())
					}
					time.Sleep(5 * time.Millisecond)
				}
			}
			wait(func(text string) bool { return servingURL.MatchString(text) })
			to := servingURL.FindStringSubmatch(term.text())[1]
			asking := exec.CommandContext(ctx, "holdfast", "tools", to) // the command waits for an answer in vain
			mcptest.Check(t, asking.Start())
			wait(func(text string) bool { return strings.Contains(text, "pwned") && strings.Contains(text, "X}") })
			_ = asking.Process.Kill()
			_ = asking.Wait()
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
			if one := raw(term.shown()); one != "" {
				t.Errorf("the terminal got %q raw in:\n%q", one, term.text())
			}
		})
	}
}

// runOn runs the program with one writer for stdout and stderr.
func runOn(t *testing.T, out io.Writer, stdin string, args ...string) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	cmd := exec.CommandContext(ctx, "holdfast", args...)
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+t.TempDir())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), out, out
	_ = cmd.Run() // some commands fail
	if ctx.Err() != nil {
		t.Errorf("%q did not end", args)
	}
}

// The program prints only through its outputs.
func TestOutputsOnly(t *testing.T) {
	t.Parallel()
	var names []string
	for _, dir := range []string{".", "../../internal/bridge", "../../internal/followcall", "../../internal/terminal"} {
		found, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %q, %v", dir, found, err)
		}
		names = append(names, found...)
	}
	around := regexp.MustCompile(`os\.Std(out|err)|fmt\.Print|\bprintln?\(|log\.(Print|Fatal|Panic)`)
	for _, name := range names {
		if name == "secrets.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		data := mcptest.Must(os.ReadFile(name))(t)
		// A child inherits these files, and the program does not print on them.
		data = bytes.ReplaceAll(data, []byte("[]*os.File{os.Stdin, os.Stdout, os.Stderr}"), nil)
		if found := around.Find(data); found != nil {
			t.Errorf("%s has %s: print to cmd.OutOrStdout or cmd.ErrOrStderr", name, found)
		}
	}
}
