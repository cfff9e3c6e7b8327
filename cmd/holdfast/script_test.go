package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/testscript"

	"holdfast"
	"holdfast/e2e"
)

// soon bounds all waits of scripts.
const soon = time.Minute

// program finds the program under test.
func program(ts *testscript.TestScript, name string) string {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	ts.Fatalf("no program %s", name)
	return ""
}

// environment returns the environment of a script, for the programs beside it.
func environment(ts *testscript.TestScript) []string {
	env := []string{}
	for _, name := range []string{
		"PATH", "HOME", "TMPDIR", "XDG_STATE_HOME", "GOCOVERDIR", "API_KEY", "AUTH_TOKEN", "HOLDFAST_DEMO", "HOLDFAST_PATH", "HOLDFAST_LOG_FORMAT",
	} {
		if value := ts.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// usage ends a script that uses a command wrongly.
func usage(ts *testscript.TestScript, ok bool, is string) {
	if !ok {
		ts.Fatalf("usage: %s", is)
	}
}

// served serves a handler until the script ends, and sets a variable to the URL.
func served(ts *testscript.TestScript, name string, h http.Handler) {
	s := httptest.NewServer(h)
	ts.Defer(func() {
		s.CloseClientConnections()
		s.Close()
	})
	ts.Setenv(name, s.URL)
}

// wantExit demands that a command has ended with an exit code (-1: it was killed).
func wantExit(ts *testscript.TestScript, err error, want string) {
	code, exit := 0, new(exec.ExitError)
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != want {
		ts.Fatalf("exit code %d, want %s", code, want)
	}
}

// servers has the servers that scripts have started with "server", by their URLs.
var servers sync.Map

// server starts "holdfast serve" and sets the variables NAME to its URL, NAME_OLD to its URL for 2024-11-05
// clients, NAME_AT to the URL without a path, NAME_WS to the URL of its WebSocket, and PORT to its port:
//
//	server NAME FLAG...
//
// It runs until the script ends.
func server(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 2, "server NAME FLAG...")
	addr, stop := startServer(ts, "127.0.0.1:0", args[1:])
	to := "http://" + addr + "/mcp"
	ts.Setenv(args[0], to)
	ts.Setenv(args[0]+"_AT", "http://"+addr)
	ts.Setenv("PORT", addr[strings.LastIndex(addr, ":")+1:])
	ts.Setenv(args[0]+"_OLD", "http://"+addr+"/sse")
	ts.Setenv(args[0]+"_WS", "ws://"+addr+"/mcp")
	servers.Store(to, func() {
		stop()
		_, again := startServer(ts, addr, args[1:])
		stop = again
	})
}

// restart kills the server at URL with SIGKILL and starts it again:
//
//	restart URL
func restart(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 1, "restart URL")
	again, ok := servers.Load(args[0])
	if !ok {
		ts.Fatalf("no server at %s", args[0])
	}
	again.(func())()
}

var servingAt = regexp.MustCompile(`^Serving MCP at http://([^/]+)/`)

func startServer(ts *testscript.TestScript, listen string, flags []string) (addr string, kill func()) {
	cmd := exec.Command(program(ts, "holdfast"), append([]string{"serve", "--listen", listen}, flags...)...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = environment(ts)
	stderr, err := cmd.StderrPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	ts.Defer(kill)
	lines := bufio.NewScanner(stderr)
	for addr == "" && lines.Scan() {
		if m := servingAt.FindStringSubmatch(lines.Text()); m != nil {
			addr = m[1]
		}
	}
	if addr == "" {
		ts.Fatalf("holdfast serve: it does not say where")
	}
	go func() {
		_, _ = io.Copy(io.Discard, stderr)
	}()
	return addr, kill
}

// proxy starts a proxy before a server, and sets a variable to the URL through it. The proxy
// cuts each event stream at an age, which grows by a twentieth each time:
//
//	proxy NAME URL AGE
func proxy(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 3, "proxy NAME URL AGE")
	u, err := url.Parse(args[1])
	ts.Check(err)
	age, err := time.ParseDuration(args[2])
	ts.Check(err)
	var cuts atomic.Int64
	p, err := e2e.NewProxy(u.Host, func(string) e2e.Cut { // a busy machine may not answer within the first age
		return e2e.Cut{After: age + time.Duration(cuts.Add(1))*age/20}
	})
	ts.Check(err)
	ts.Defer(p.Close)
	u.Host = p.Addr()
	ts.Setenv(args[0], u.String())
}

// forgetful starts a server that cannot resume calls, and sets a variable to its URL:
//
//	forgetful NAME
func forgetful(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 1, "forgetful NAME")
	demo := newDemo()
	served(ts, args[0], mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return demo }, nil))
}

// curious starts a server with the tool "survey", and sets a variable to its URL. The tool
// asks and then works on. It halts half-way for as long as the directory "halt" exists:
//
//	curious NAME
func curious(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 1, "curious NAME")
	server := mcp.NewServer(&mcp.Implementation{Name: "curious", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "survey"}, survey)
	halting(server, there(ts.MkAbs("halt")))
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{Retry: 10 * time.Millisecond})
	served(ts, args[0], h)
	ts.Defer(func() {
		ctx, stop := context.WithCancel(context.Background())
		stop() // no client waits
		_ = h.Shutdown(ctx)
	})
}

// shelf starts a server of the go-sdk with resources, prompts and instructions, and sets a variable to its URL:
//
//	shelf NAME
func shelf(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 1, "shelf NAME")
	server := mcp.NewServer(&mcp.Implementation{Name: "shelf", Title: "A shelf", Version: "1.2"}, &mcp.ServerOptions{Instructions: "Read the letter.\nThen answer it."})
	read := func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		c := &mcp.ResourceContents{URI: r.Params.URI, MIMEType: "text/plain", Text: "Dear sir,\nno.\n"}
		if r.Params.URI == "shelf://data" {
			c = &mcp.ResourceContents{URI: r.Params.URI, MIMEType: "application/octet-stream", Blob: []byte("\x00\x01data")}
		}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
	}
	server.AddResource(&mcp.Resource{URI: "shelf://letter", Name: "letter", MIMEType: "text/plain", Description: "A letter.\nIt is short."}, read)
	server.AddResource(&mcp.Resource{URI: "shelf://data", Name: "data"}, read)
	server.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "shelf://letters/{n}", Name: "letters"}, read)
	server.AddPrompt(&mcp.Prompt{Name: "greet", Description: "Greets somebody.", Arguments: []*mcp.PromptArgument{{Name: "name", Required: true}, {Name: "title"}}},
		func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			a := r.Params.Arguments
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{
				{Role: "user", Content: &mcp.TextContent{Text: "Hello " + a["title"] + a["name"]}},
				{Role: "assistant", Content: &mcp.TextContent{Text: "Hello"}},
			}}, nil
		})
	served(ts, args[0], mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
}

// survey asks for a name and a colour, and takes some time after the answer.
func survey(ctx context.Context, req *mcp.CallToolRequest, _ any) (*mcp.CallToolResult, any, error) {
	res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{
		Message: "Who are you?",
		RequestedSchema: json.RawMessage(`{"type":"object","required":["name","colour"],"properties":{` +
			`"name":{"type":"string","minLength":2},` +
			`"colour":{"type":"string","oneOf":[{"const":"r","title":"Red"},{"const":"g","title":"Green"}]},` +
			`"age":{"type":"integer","minimum":0,"title":"Age"},` +
			`"news":{"type":"boolean","default":true}}}`),
	})
	if err != nil {
		return nil, nil, err
	}
	for i := range 20 {
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: req.Params.GetProgressToken(), Progress: float64(i + 1), Total: 20,
		})
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	said, err := json.Marshal(res.Content) // the names are in order
	return text("%s %s", res.Action, said), nil, err
}

// signals runs a command, sends it a signal each time that a line of its stderr
// matches, and demands an exit code (-1: it was killed):
//
//	signals CODE REGEXP SIGNAL [REGEXP SIGNAL]... -- COMMAND ARG...
//
// KEPT-KILL is SIGKILL once the saved state of the call has the progress in the matching line. INT-INT is SIGINT twice at once.
// NEXT renames the file "next" to "config.json", and GONE removes "config.json". The variables TOKEN and NAME are set to the words
// after "holdfast resume " on stderr. The command's stdin has the text of the file "answers", if there is one, and does not end.
func signals(ts *testscript.TestScript, neg bool, args []string) {
	sep := 0
	for sep < len(args) && args[sep] != "--" {
		sep++
	}
	usage(ts, !neg && sep < len(args)-1 && sep >= 3 && sep%2 == 1, "signals CODE REGEXP SIGNAL [REGEXP SIGNAL]... -- COMMAND ARG...")
	cmd := exec.Command(program(ts, args[sep+1]), args[sep+2:]...)
	cmd.Env = environment(ts)
	cmd.Dir = ts.MkAbs(".")
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	stdin, err := cmd.StdinPipe() // stdin does not end
	ts.Check(err)
	defer stdin.Close()
	if answers, err := os.ReadFile(ts.MkAbs("answers")); err == nil {
		_, err := stdin.Write(answers)
		ts.Check(err)
	}
	stderr, err := cmd.StderrPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	late := time.AfterFunc(soon, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	var said strings.Builder
	steps := args[1:sep]
	for lines := bufio.NewReader(stderr); ; {
		line, err := lines.ReadString('\n')
		said.WriteString(line)
		if _, token, ok := strings.Cut(line, "holdfast resume hf1."); ok {
			ts.Setenv("TOKEN", "hf1."+strings.Fields(token)[0])
		}
		if _, name, ok := strings.Cut(line, "with: holdfast resume "); ok {
			ts.Setenv("NAME", strings.Fields(name)[0])
		}
		if len(steps) > 0 && regexp.MustCompile(steps[0]).MatchString(line) {
			switch steps[1] {
			case "KEPT-KILL":
				waitKept(ts, "calls", progressOf(line))
			case "NEXT":
				ts.Check(os.Rename(ts.MkAbs("next"), ts.MkAbs("config.json")))
			case "GONE":
				ts.Check(os.Remove(ts.MkAbs("config.json")))
			}
			for _, s := range map[string][]syscall.Signal{
				"INT": {syscall.SIGINT}, "INT-INT": {syscall.SIGINT, syscall.SIGINT}, "TERM": {syscall.SIGTERM}, "HUP": {syscall.SIGHUP},
				"KILL": {syscall.SIGKILL}, "KEPT-KILL": {syscall.SIGKILL},
			}[steps[1]] {
				ts.Check(cmd.Process.Signal(s))
			}
			steps = steps[2:]
		}
		if err != nil {
			break
		}
	}
	err = cmd.Wait()
	_, _ = stdout.WriteTo(ts.Stdout())
	_, _ = io.WriteString(ts.Stderr(), said.String())
	if len(steps) > 0 {
		ts.Fatalf("it ended before %q", steps[0])
	}
	wantExit(ts, err, args[0])
}

// progressOf returns the progress in a line.
func progressOf(line string) int {
	n := 0
	_, _ = fmt.Sscanf(line, "progress %d/", &n)
	return n
}

var eventSeq = regexp.MustCompile(`"lastEventId":"[^"]*\.([0-9a-z]+)(?:~[^"]*)?"`)

// waitKept waits until the saved state of a call of a command has the nth message of the call's stream.
func waitKept(ts *testscript.TestScript, command string, n int) {
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(time.Millisecond) {
		names, err := filepath.Glob(filepath.Join(ts.Getenv("XDG_STATE_HOME"), "holdfast", command, "*.json"))
		ts.Check(err)
		for _, name := range names {
			data, _ := os.ReadFile(name) // the file may be gone by now
			for _, m := range eventSeq.FindAllSubmatch(data, -1) {
				if seq, err := strconv.ParseInt(string(m[1]), 36, 0); err == nil && int(seq) >= n {
					return
				}
			}
		}
	}
	ts.Fatalf("it is not kept that message %d has come", n)
}

// chat runs a command and talks to it as a file says, line by line:
//
//	> a line for its stdin; $1 stands for the group of the last regexp
//	< regexp that a line of its stdout must match, sooner or later
//	! regexp that no line has matched so far
//	halt           calls halt half-way, see halting, until go
//	kept N         wait until the saved state of a call has message N
//	kill           SIGKILL
//	term           SIGTERM
//	close          end of its stdin
//
// At the end its stdin is closed, and it must exit with 0 if it was not killed.
//
//	chat FILE COMMAND ARG...
func chat(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 2, "chat FILE COMMAND ARG...")
	cmd := exec.Command(program(ts, args[1]), args[2:]...)
	cmd.Env = environment(ts)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	ts.Check(err)
	stdout, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	late := time.AfterFunc(soon, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	heard := bufio.NewScanner(stdout)
	heard.Buffer(nil, 32<<20)
	var lines []string
	killed, captured := false, ""
	for step := range strings.Lines(ts.ReadFile(args[0])) {
		step = strings.TrimSpace(step)
		what, rest, _ := strings.Cut(step, " ")
		switch what {
		case "", "#":
		case ">":
			_, err := fmt.Fprintln(stdin, strings.ReplaceAll(rest, "$1", captured))
			ts.Check(err)
		case "<":
			want := regexp.MustCompile(rest)
			for found := false; !found; {
				if !heard.Scan() {
					_ = cmd.Process.Kill()
					_ = cmd.Wait() // stderr is complete then
					ts.Fatalf("nothing matches %s in\n%s\nstderr: %s", rest, strings.Join(lines, "\n"), stderr.String())
				}
				lines = append(lines, heard.Text())
				match := want.FindStringSubmatch(heard.Text())
				if found = match != nil; len(match) > 1 {
					captured = match[1]
				}
			}
		case "!":
			for _, line := range lines {
				if regexp.MustCompile(rest).MatchString(line) {
					ts.Fatalf("%s matches %s", rest, line)
				}
			}
		case "halt":
			ts.Check(os.MkdirAll(ts.MkAbs("halt"), 0o700))
		case "go":
			ts.Check(os.RemoveAll(ts.MkAbs("halt")))
		case "kept":
			n, err := strconv.Atoi(rest)
			ts.Check(err)
			waitKept(ts, "connect", n)
		case "kill":
			killed = true
			ts.Check(cmd.Process.Kill())
		case "term":
			ts.Check(cmd.Process.Signal(syscall.SIGTERM))
		case "close":
			ts.Check(stdin.Close())
		default:
			ts.Fatalf("%s: %q is none of > < ! halt go kept kill term close", args[0], step)
		}
	}
	_ = stdin.Close()
	for heard.Scan() {
		lines = append(lines, heard.Text())
	}
	err = cmd.Wait()
	_, _ = io.WriteString(ts.Stdout(), strings.Join(lines, "\n")+"\n")
	_, _ = stderr.WriteTo(ts.Stderr())
	if err != nil && !killed {
		ts.Fatalf("%v\n%s", err, stderr.String())
	}
}
