package main

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/client"
	"holdfast/internal/followcall"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A server of revision 2026-07-28 alone is used without a session. Its questions reach the user,
// and the program follows a call that becomes a task. status, resume and cancel take the task's id.
func TestModernServer(t *testing.T) {
	t.Parallel()
	var polls, cancelled atomic.Int32
	result := func(result string) mcptest.Does {
		return func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			mcptest.JSON(w, mcptest.Result(m, result))
		}
	}
	url := mcptest.Serve(t, mcptest.Methods{
		"initialize": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"unsupported","data":{"supported":["2026-07-28"]}}}`, m.ID)
		},
		"server/discover": result(`{"supportedVersions":["2026-07-28"],"capabilities":{}}`),
		"tools/list":      result(`{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}`),
		"tools/call": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			if name := jsonrpc.Field(m.Params, "inputResponses", "n", "content", "name"); string(name) == `"bob"` {
				result(`{"resultType":"task","taskId":"t1","status":"working","pollIntervalMs":1,"ttlMs":null}`)(w, r, m)
				return
			}
			result(`{"resultType":"input_required","requestState":"s","inputRequests":{"n":{"method":"elicitation/create","params":{"message":"name?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}}}`)(w, r, m)
		},
		"tasks/get": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			if polls.Add(1) > 3 {
				result(`{"taskId":"t1","status":"completed","ttlMs":null,"result":{"content":[{"type":"text","text":"all is done"}]}}`)(w, r, m)
				return
			}
			result(`{"taskId":"t1","status":"working","pollIntervalMs":1,"ttlMs":null}`)(w, r, m)
		},
		"tasks/cancel": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			cancelled.Add(1)
			result(`{"resultType":"complete"}`)(w, r, m)
		},
	})
	run := func(stdin string, args ...string) (string, error) {
		out, says, err := runInside(t, stdin, append(args, "--log-level=error")...) // the log is the process's: other tests write to it
		return out + says, err
	}
	state := "--state=" + t.TempDir()
	if out, err := run("bob\n", "call", "-i", state, url, "x"); err != nil || !strings.Contains(out, "all is done") || !strings.Contains(out, "task: working") {
		t.Errorf("call: %v\n%s", err, out)
	}
	if out, err := run("", "status", url, "t1"); err != nil || out != "completed\n" {
		t.Errorf("status: %v\n%s", err, out)
	}
	if out, err := run("", "resume", state, url, "t1"); err != nil || !strings.Contains(out, "all is done") {
		t.Errorf("resume: %v\n%s", err, out)
	}
	polls.Store(-1 << 20)
	if out, err := run("", "cancel", url, "t1"); err != nil || cancelled.Load() != 1 {
		t.Errorf("cancel: %v\n%s", err, out)
	}
	if _, err := run("", "cancel", "a", "b"); err == nil {
		t.Error("no URL, and no error")
	}
}

// A token leads another machine to a call of revision 2026-07-28, to resume or to cancel it.
func TestModernToken(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"resume", "cancel"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			release, ended := make(chan struct{}), make(chan error, 1)
			server := mcp.NewServer(&mcp.Implementation{Name: "slow", Version: "1"}, nil)
			mcp.AddTool(server, &mcp.Tool{Name: "wait"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
				_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 1})
				select {
				case <-release:
				case <-ctx.Done():
				}
				ended <- ctx.Err()
				return text("released"), nil, ctx.Err()
			})
			h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{Eras: holdfast.ErasModern})
			mcptest.ShutDownAtEnd(t, h, time.Second)
			url := mcptest.Serve(t, h)
			conn := mcptest.Must(client.New(url, nil))(t)
			t.Cleanup(conn.Detach)
			say := func(method, params, until string) {
				mcptest.Check(t, conn.Send(t.Context(), mcptest.Parse(mcptest.ModernRequest(1, method, `{}`, params))))
				for {
					if m := mcptest.Must(conn.Receive(t.Context()))(t); m.Method == until {
						return
					}
				}
			}
			say("server/discover", `"x":1`, "")
			say("tools/call", `"name":"wait","arguments":{}`, "notifications/progress")
			token := followcall.Token(conn.State())
			conn.Detach()
			out, says, err := runInside(t, "", "status", token, "--log-level=error")
			if err == nil || !strings.Contains(err.Error(), "gives no status") {
				t.Errorf("status: %v\n%s%s", err, out, says)
			}
			if command == "resume" {
				close(release)
			}
			out, says, err = runInside(t, "", command, "--state="+t.TempDir(), token, "--log-level=error")
			if err != nil || command == "resume" && out != "released\n" {
				t.Fatalf("%v\n%s%s", err, out, says)
			}
			select {
			case err := <-ended:
				if (err != nil) != (command == "cancel") {
					t.Errorf("the call ended with %v", err)
				}
			case <-time.After(time.Minute):
				t.Error("the call goes on")
			}
		})
	}
}

// A call that is answered a question is found by another token from then on. The user gets that one, too: with the first one the second half of
// the call would be made again.
func TestTokenOfRound(t *testing.T) {
	t.Parallel()
	event := func(w http.ResponseWriter, text string, args ...any) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: "+text+"\n\n", args...)
		_ = http.NewResponseController(w).Flush()
	}
	const (
		asks = `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","requestState":"s","inputRequests":{"n":{"method":"elicitation/create","params":{"message":"name?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}}}}`
		done = `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","content":[{"type":"text","text":"done"}]}}`
	)
	var halves atomic.Int32
	var says mcptest.Log
	tokens := regexp.MustCompile(`hf1\.[\w-]+`)
	result := func(result string) mcptest.Does {
		return func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			mcptest.JSON(w, mcptest.Result(m, result))
		}
	}
	url := mcptest.Serve(t, mcptest.Methods{
		"initialize": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"unsupported","data":{"supported":["2026-07-28"]}}}`, m.ID)
		},
		"server/discover": result(`{"supportedVersions":["2026-07-28"],"capabilities":{"extensions":{"holdfast/resumableRequests":{}}}}`),
		"tools/list":      result(`{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}`),
		"tools/call": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			want, token, answer := 1, "first", asks
			if jsonrpc.Field(m.Params, "inputResponses") != nil {
				halves.Add(1)
				want, token, answer = 2, "second", done
			}
			event(w, `{"jsonrpc":"2.0","method":"notifications/requests/resumePolicy","params":{"requestId":%s,"resumeToken":"%s"}}`, m.ID, token)
			for until := time.Now().Add(time.Minute); len(tokens.FindAllString(says.String(), -1)) < want && time.Now().Before(until); {
				time.Sleep(time.Millisecond)
			}
			event(w, answer, m.ID)
		},
		"requests/resume": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			if jsonrpc.String(jsonrpc.Field(m.Params, "resumeToken")) == "first" {
				event(w, asks, m.ID)
				return
			}
			event(w, done, m.ID)
		},
	})
	cmd := newRoot()
	cmd.SetArgs([]string{"call", "-i", "--state=", url, "x", "--log-level=error"})
	cmd.SetIn(strings.NewReader("bob\n"))
	cmd.SetOut(&says)
	cmd.SetErr(&says)
	mcptest.Check(t, cmd.ExecuteContext(t.Context()))
	all := tokens.FindAllString(says.String(), -1)
	if len(all) != 2 {
		t.Fatalf("%d tokens:\n%s", len(all), says.String())
	}
	if s := mcptest.Must(followcall.ParseToken(all[1]))(t); s.Calls[0].Token != "second" {
		t.Errorf("the last token leads to %q", s.Calls[0].Token)
	}
	out, text, err := runInside(t, "bob\n", "resume", "-i", "--state=", all[1], "--log-level=error")
	if n := halves.Load(); err != nil || out != "done\n" || n != 1 {
		t.Errorf("the second half ran %d times: %v\n%s%s", n, err, out, text)
	}
}
