package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
)

// FAILURES 27: a server that ends at its start has begun no call. No client is told that an outcome is unknown. The
// log has the exit status and the end of stderr; clients get stderr only with --stderr-to-client.
func TestFailure27EndedAtStart(t *testing.T) {
	t.Parallel()
	const script = "echo cannot find module >&2; echo secret-path >&2; exit 3"
	command := []string{"--", "sh", "-c", script}
	file := func(share string) []string {
		return []string{"--config", fileOf(t, fmt.Sprintf(`{"mcpServers":{"a":{"command":"sh","args":["-c",%q]%s}}}`, script, share))}
	}
	const modern = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"m","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	for name, args := range map[string][]string{
		"process": command,
		"shared":  append([]string{"--share"}, command...),
		"file":    file(""),
	} {
		for _, toClient := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", name, toClient), func(t *testing.T) {
				t.Parallel()
				args := append([]string{"--eras", "both"}, args...)
				if toClient {
					args = append([]string{"--stderr-to-client"}, args...)
				}
				p := serve(t, args...)
				for what, body := range map[string]string{
					"initialize":  begins,
					"modern call": `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{},` + modern + `}}`,
				} {
					got := post(t, p.URL, "", "", body)
					// A modern call may arrive just after the server has ended.
					told := strings.Contains(got.Body, "the server ended at its start (exit status 3")
					if late := what == "modern call" && strings.Contains(got.Body, "has ended"); !told && !late || strings.Contains(got.Body, "unknown") {
						t.Errorf("%s: %d %s", what, got.Status, got.Body)
					}
					if told && strings.Contains(got.Body, "secret-path") != toClient {
						t.Errorf("%s: stderr for clients is %t: %s", what, toClient, got.Body)
					}
				}
				if err := p.stop(t); err != nil {
					t.Error(err)
				}
				log := p.log.String()
				if !strings.Contains(log, `stderr="cannot find module\nsecret-path"`) {
					t.Errorf("the log has no line with all of it: %s", log)
				}
				if strings.Count(log, "level=ERROR") != 1 || !strings.Contains(log, "exit status 3") || strings.Contains(log, "level=WARN") && name != "shared" {
					t.Errorf("the log does not say once how it ended: %s", log)
				}
			})
		}
	}
}

// A server that writes much to its stderr does not fill the log, and the lines that are left out are counted.
func TestStderrBounded(t *testing.T) {
	t.Parallel()
	const lines = 2000
	p := serve(t, "--", "sh", "-c", fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo "line $i" >&2; i=$((i+1)); done; exit 1`, lines))
	post(t, p.URL, "", "", begins)
	if err := p.stop(t); err != nil {
		t.Error(err)
	}
	log := p.log.String()
	n := strings.Count(log, `msg="server stderr"`)
	if n > lines/5 {
		t.Errorf("%d lines are in the log", n)
	}
	for _, more := range regexp.MustCompile(`msg="server stderr: lines left out".* lines=(\d+)`).FindAllStringSubmatch(log, -1) {
		left, _ := strconv.Atoi(more[1])
		n += left
	}
	if n != lines {
		t.Errorf("%d lines are counted, not %d", n, lines)
	}
	if !strings.Contains(log, fmt.Sprintf(`line %d"`, lines-1)) {
		t.Error("the last lines are not in the line about the end")
	}
}

// When the time of a drain is over, the log names the calls that are cut short. For a client of 2026-07-28 it has no request id,
// as it would be an internal id that the client does not know.
func TestDrainNamesCalls(t *testing.T) {
	t.Parallel()
	const call = `{"jsonrpc":"2.0","id":"long","method":"tools/call","params":{"name":"count","arguments":{"to":1000,"delay_ms":100},"_meta":{"progressToken":1%s}}}`
	for name, c := range map[string]struct {
		meta, which, id string
	}{
		"legacy": {which: "session ", id: `, id \"long\"]`},
		"modern": {
			meta:  `,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`,
			which: "revision 2026-07-28, in carrier ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, "--demo", "--eras", "both", "--drain", "200ms")
			var session string
			if c.meta == "" {
				session = post(t, p.URL, "", "", begins).Header.Get("Mcp-Session-Id")
			}
			call := (&mcptest.Client{URL: p.URL, Session: session}).Stream(t, http.MethodPost, fmt.Sprintf(call, c.meta))
			call.Until(t, "notifications/progress") // the call runs
			if err := p.stop(t); err != nil {
				t.Error(err)
			}
			log := p.log.String()
			if !strings.Contains(log, `msg="calls did not end in time" calls=1 which="[tools/call of `+c.which) || !strings.Contains(log, c.id) || c.id == "" && strings.Contains(log, ", id ") {
				t.Errorf("the log does not name the call: %s", log)
			}
		})
	}
}
