package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/internal/testport"
	"holdfast/jsonrpc"
)

// The memory of a program under load, in bytes: goMemory is its GOMEMLIMIT, and mostMemory bounds the peak that the system counts.
const (
	goMemory   = 256 << 20
	mostMemory = goMemory / 100 * 135
)

// A load is one kind of load, beyond one bound of docs/sizing.md ("Bounds").
type load struct {
	kind  string
	args  []string // of holdfast serve
	run   func(t *testing.T, l *loaded)
	error string // matches the error of clients beyond the bound; "": there is none
}

// A loaded is a program under load, with the answers that its clients got.
type loaded struct {
	*program
	mu            sync.Mutex
	fine, refused int
	told          map[string]int // the number of errors, by their text
}

var messageOf = regexp.MustCompile(`"message":"((?:[^"\\]|\\.)*)"`)

// hears counts an answer to a client: an error by its text, or a success.
func (l *loaded) hears(status int, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := messageOf.FindStringSubmatch(text)
	switch {
	case found != nil:
		text = found[1]
	case status < 300:
		l.fine++
		return
	}
	l.refused++
	l.told[fmt.Sprintf("%d %.100s", status, text)]++
}

// at makes requests from several addresses at a time, each requests from each address.
func (l *loaded) at(t *testing.T, addresses, each int, request func(s *stranger, address, n int)) {
	var all sync.WaitGroup
	for a := range addresses {
		all.Go(func() {
			s := l.stranger(t, fmt.Sprintf("127.0.%d.%d", 1+a/250, 1+a%250))
			for n := range each {
				request(s, a, n)
			}
		})
	}
	all.Wait()
}

// asks has a client post a message, and counts the answer.
func (l *loaded) asks(s *stranger, session, body string) mcptest.Reply {
	r := s.post(l.URL, session, body)
	l.hears(r.Status, r.Body)
	return r
}

func initializeOf(size int) string {
	return mcptest.Initialize("2025-11-25", fmt.Sprintf(`{"experimental":{"x":{"y":%q}}}`, strings.Repeat("y", size)))
}

// bigServer serves the big server over HTTP. The path of its URL chooses the transport.
func bigServer(t *testing.T) string {
	return mcptest.Serve(t, &mcptest.Server{Open: true, Script: big.Script})
}

// big is a server with a tool that answers with n bytes, its argument. With the argument stall, on stdio, the answer does not end.
var big = mcptest.Answers{
	"initialize": func(m jsonrpc.Message, _ func(string)) string {
		return mcptest.Result(m, mcptest.Welcome(m, `{"tools":{},"resources":{"subscribe":true}}`))
	},
	"tools/list":            mcptest.Fixed(`{"tools":[{"name":"big","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}`),
	"resources/list":        mcptest.Fixed(`{"resources":[]}`),
	"resources/read":        mcptest.Fixed(`{"contents":[]}`),
	"resources/subscribe":   mcptest.Fixed(`{}`),
	"resources/unsubscribe": mcptest.Fixed(`{}`),
	"tools/call": func(m jsonrpc.Message, _ func(string)) string {
		n, _ := strconv.Atoi(string(jsonrpc.Field(m.Params, "arguments", "n")))
		text := strings.Repeat("x", n)
		if jsonrpc.Field(m.Params, "arguments", "stall") == nil {
			return mcptest.Result(m, `{"content":[{"type":"text","text":"`+text+`"}]}`)
		}
		_, _ = fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"text":"%s`, m.ID, text)
		return ""
	},
}

// results has 20 clients call the tool at the same time, each client each times, for results of size bytes.
func results(each, size int) func(t *testing.T, l *loaded) {
	return func(t *testing.T, l *loaded) {
		l.at(t, 20, 1, func(s *stranger, _, _ int) {
			id := l.asks(s, "", strangeInit).Session()
			var all sync.WaitGroup
			for n := range each {
				all.Go(func() {
					l.asks(s, id, mcptest.Call(n+1, "big", fmt.Sprintf(`{"n":%d}`, size)))
				})
			}
			all.Wait()
		})
	}
}

// modernResults is results for clients of 2026-07-28.
func modernResults(clients, size int) func(t *testing.T, l *loaded) {
	return func(t *testing.T, l *loaded) {
		l.at(t, clients, 1, func(s *stranger, _, _ int) {
			l.asks(s, "", mcptest.ModernRequest(1, "tools/call", `{}`, fmt.Sprintf(`"name":"big","arguments":{"n":%d}`, size)))
		})
	}
}

// loads returns the loads of all kinds. No client may get "outcome unknown", or an error without the reason.
func loads(t *testing.T) []load {
	uri := func(a, n, size int) string { return fmt.Sprintf("x:%d/%d/%s", a, n, strings.Repeat("u", size)) }
	about := func(method string, sessions, each, size int) func(t *testing.T, l *loaded) {
		return func(t *testing.T, l *loaded) {
			l.at(t, 4, sessions, func(s *stranger, a, n int) {
				id := l.asks(s, "", strangeInit).Session()
				if id == "" {
					return // there is no room for another session
				}
				for i := range each {
					l.asks(s, id, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"uri":%q}}`, method, uri(a, n*each+i, size)))
				}
			})
		}
	}
	process := []string{"--", os.Args[0], "big"}
	upstream := func(path string) []string { return []string{"--upstream", bigServer(t) + path} }
	cert, key := authtest.NewCA(t, "ca").Server("one")
	files := authtest.Files(t, cert, key)
	secure := []string{"--demo", "--tls-cert", files[0], "--tls-key", files[1]}
	merged := fileOf(t, fmt.Sprintf(`{"mcpServers":{"a":{"url":%q},"b":{"url":%q}},"holdfast":{"merge":true}}`, bigServer(t)+"/json", bigServer(t)+"/json"))
	return []load{
		{"12,000 sessions from 4 addresses", []string{"--demo"}, func(t *testing.T, l *loaded) {
			l.at(t, 4, 3000, func(s *stranger, _, _ int) { l.asks(s, "", strangeInit).Session() })
		}, "429 .*--memory"},
		{"2,000 initialize requests of 60 KB", []string{"--demo"}, func(t *testing.T, l *loaded) {
			l.at(t, 4, 500, func(s *stranger, _, _ int) { l.asks(s, "", initializeOf(60_000)).Session() })
		}, "429 .*--memory"},
		{"3,000 sessions with an upstream server", upstream("/json"), func(t *testing.T, l *loaded) {
			l.at(t, 4, 750, func(s *stranger, _, _ int) { l.asks(s, "", strangeInit).Session() })
		}, "429 .*--memory"},
		{"what clients of 2026-07-28 say of themselves, 1 MB", []string{"--demo"}, func(t *testing.T, l *loaded) {
			l.at(t, 8, 50, func(s *stranger, a, n int) {
				l.asks(s, "", mcptest.ModernRequest(1, "tools/list", fmt.Sprintf(`{"x":"%d/%d/%s"}`, a, n, strings.Repeat("c", 1<<20))))
			})
		}, "413 .*65536 bytes|429 .*--memory"},
		{"the same, 60 KB, of 400 kinds from 8 addresses", []string{"--demo"}, func(t *testing.T, l *loaded) {
			l.at(t, 8, 50, func(s *stranger, a, n int) {
				l.asks(s, "", mcptest.ModernRequest(1, "tools/list", fmt.Sprintf(`{"x":"%d/%d/%s"}`, a, n, strings.Repeat("c", 60_000))))
			})
		}, ""},
		{"300 subscriptions of 1 MB", upstream("/json"), about("resources/subscribe", 1, 75, 1<<20), "400 .*longer than 8192 bytes|429 .*--memory"},
		{"8,000 subscriptions of 8 KB", upstream("/json"), about("resources/subscribe", 10, 200, 8000), "429 .*--memory"},
		{"400 merged reads of 1 MB", []string{"--config", merged}, about("resources/read", 1, 100, 1<<20), "400 .*longer than 8192 bytes|429 .*--memory"},
		{"8,000 merged reads of 8 KB", []string{"--config", merged}, about("resources/read", 8, 250, 8000), ""},
		{"20 results of 30 MB, a process", process, results(1, 30_000_000), "--memory"},
		{"20 results of 14 MB, HTTP with JSON", upstream("/json"), results(1, 14_000_000), "--memory"},
		{"20 results of 14 MB, HTTP with streams", upstream("/mcp"), results(1, 14_000_000), "--memory"},
		{"20 results of 14 MB, a WebSocket", []string{"--upstream", "ws" + strings.TrimPrefix(bigServer(t), "http") + "/ws"}, results(1, 14_000_000), "--memory"},
		{"20 results of 14 MB, HTTP+SSE", upstream("/sse"), results(1, 14_000_000), "--memory"},
		{"20 results of 30 MB, a process and clients of 2026-07-28", process, modernResults(20, 30_000_000), "--memory"},
		{"20 results of 12 MB, HTTP with JSON", upstream("/json"), results(1, 12_000_000), ""},
		{"100 results of 4 MB, a process", process, results(5, 4_000_000), ""},
		{"100 results of 4 MB, HTTP with JSON", upstream("/json"), results(5, 4_000_000), ""},
		{"300 clients that do not read results of 1 MB", process, unread(300, 1_000_000), ""},
		{"9,000 connections that send nothing", []string{"--demo"}, connections(9000, "", false), ""},
		{"6,000 half-sent headers of 27 KB", []string{"--demo"}, connections(6000, "POST /mcp HTTP/1.1\r\n"+ordinary(250), false), ""},
		{"6,000 half-sent headers of short fields", []string{"--demo"}, connections(6000, "POST /mcp HTTP/1.1\r\n"+short(650), false), ""},
		{"4,500 half-open bodies with 24 KB of header", []string{"--demo"}, connections(4500, halfOpen+ordinary(220)+"\r\n{", false), ""},
		{"3,000 half-open bodies with 4,000 fields", []string{"--demo"}, connections(3000, halfOpen+short(4000)+"\r\n{", false), ""},
		{"9,000 idle connections that were used", []string{"--demo"}, connections(9000, "GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", true), "503 .*--memory"},
		{"9,200 idle WebSockets", []string{"--demo"}, connections(9200, socketHandshake, true), "(429|503) .*--memory"},
		{"6,000 streams of HTTP+SSE", []string{"--demo"}, connections(6000, "GET /sse HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n", true), "(429|503) .*--memory"},
		{"6,000 handshakes of TLS that do not end", secure, connections(6000, "\x16\x03\x01\x40\x00\x01\x00\xff\xf0"+strings.Repeat("x", 0x4000-4)+"\x16\x03\x01\x40\x00"+strings.Repeat("x", 0x4000), false), ""},
		{"8,000 streams of HTTP/2", secure, streamsOfHTTP2(8000), "429 .*--memory"},
	}
}

// socketHandshake asks for a WebSocket, and halfOpen begins a request without sending its body.
const (
	socketHandshake = "GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	halfOpen        = "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: 8000\r\n"
)

// ordinary returns n fields of a header with 100 bytes each, and short n fields without a value.
func ordinary(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "X-%d: %s\r\n", i, strings.Repeat("j", 100))
	}
	return b.String()
}

func short(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%x:\r\n", i)
	}
	return b.String()
}

// connections has clients at two addresses open n connections, write says on each, and leave them open. If answered is set, the
// clients read the answers.
func connections(n int, says string, answered bool) func(t *testing.T, l *loaded) {
	return func(t *testing.T, l *loaded) {
		var all sync.WaitGroup
		for a := range 2 {
			all.Go(func() {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 3, byte(1+a))}}
				for range n / 2 {
					c, err := d.DialContext(t.Context(), "tcp", l.Addr)
					if err != nil {
						continue // the server refuses the connection
					}
					t.Cleanup(func() { _ = c.Close() })
					_ = c.SetDeadline(time.Now().Add(time.Minute))
					if _, err := io.WriteString(c, says); err != nil || !answered {
						continue // the connection may be refused
					}
					b := make([]byte, 1<<10)
					m, err := c.Read(b)
					if err != nil {
						continue // the connection was refused
					}
					status, _ := strconv.Atoi(string(b[min(m, 9):min(m, 12)]))
					if status >= 400 && status != http.StatusNotFound {
						rest := make([]byte, 1<<10)
						if !bytes.Contains(b[:m], []byte("--memory")) { // the body may come in another packet
							more, _ := c.Read(rest)
							m += copy(b[m:], rest[:more])
						}
						l.hears(status, string(b[:m]))
					} else {
						l.hears(http.StatusOK, "")
					}
				}
			})
		}
		all.Wait()
		l.honest(t)
	}
}

// honest has another client begin a session and call a tool, while the connections of the load are open.
func (l *loaded) honest(t *testing.T) {
	s := l.stranger(t, "127.0.9.8")
	id := l.asks(s, "", strangeInit).Session()
	if r := l.asks(s, id, mcptest.Call(1, "count", `{"to":1}`)); id == "" || r.Status != http.StatusOK {
		t.Errorf("another client, meanwhile: %d %s", r.Status, r.Body)
	}
}

// streamsOfHTTP2 has clients at two addresses open n streams, over connections of HTTP/2.
func streamsOfHTTP2(n int) func(t *testing.T, l *loaded) {
	return func(t *testing.T, l *loaded) {
		var all sync.WaitGroup
		for a := range 2 {
			web := clientAt(t, fmt.Sprint("127.0.3.", 1+a))
			web.Timeout = 0 // the streams stay open
			for range 4 {
				all.Go(func() {
					for range n / 8 {
						res, err := (&mcptest.Client{URL: strings.TrimSuffix(l.URL, "/mcp") + "/sse", HTTP: web}).Send(t.Context(), http.MethodGet, "")
						if err != nil {
							continue // its connection was refused
						}
						if res.ProtoMajor != 2 {
							t.Errorf("it is %s", res.Proto)
						}
						if res.StatusCode == http.StatusOK {
							t.Cleanup(func() { _ = res.Body.Close() })
							l.hears(res.StatusCode, "")
							continue
						}
						r, _ := mcptest.Read(res, nil)
						l.hears(r.Status, r.Body)
					}
				})
			}
		}
		all.Wait()
		l.honest(t)
	}
}

// unread has clients call a tool without reading the answers.
func unread(clients, size int) func(t *testing.T, l *loaded) {
	return func(t *testing.T, l *loaded) {
		s := l.stranger(t, "127.0.0.1")
		id := l.asks(s, "", strangeInit).Session()
		var conns []net.Conn
		for n := range clients {
			c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 2, byte(1+n%200))}}).DialContext(t.Context(), "tcp", l.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
			conns = append(conns, c)
			body := mcptest.Call(n+1, "big", fmt.Sprintf(`{"n":%d}`, size))
			_, err = fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMcp-Session-Id: %s\r\nContent-Length: %d\r\n\r\n%s", l.Addr, id, len(body), body)
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range conns { // until all answers have begun
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := c.Read(make([]byte, 16)); err != nil {
				t.Error(err)
			}
		}
		for n := range 20 { // other requests are answered meanwhile
			l.asks(s, id, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, clients+n+1))
		}
	}
}

// Under load of each kind the program stays within its memory, and the errors of clients beyond a bound name the bound.
func TestMemoryUnderLoad(t *testing.T) {
	testlong.Only(t, "it takes two minutes")
	var table strings.Builder
	for _, load := range loads(t) {
		t.Run(load.kind, func(t *testing.T) {
			mcptest.Check(t, build())
			cmd := exec.Command(built, append([]string{"serve", "--listen", "127.0.0.1:0", "--drain", "100ms", "--memory", "64MiB"}, load.args...)...)
			cmd.Env = append(os.Environ(), "GOMEMLIMIT="+strconv.Itoa(goMemory))
			l := &loaded{program: serveBy(t, cmd), told: make(map[string]int)}
			began := time.Now()
			load.run(t, l)
			peak := l.peak(t)
			if peak > mostMemory {
				t.Errorf("%d MB of memory, and %d are allowed", peak>>20, mostMemory>>20)
			}
			seen, want := "", regexp.MustCompile(load.error)
			for text := range l.told {
				if load.error != "" && want.MatchString(text) {
					seen = text
				} else if !strings.Contains(text, "--memory") && !strings.Contains(text, "store is full") {
					t.Errorf("a client was told: %s", text)
				}
			}
			if load.error != "" && seen == "" {
				t.Errorf("no client was told of the bound (%s): %d were served, others told %v", load.error, l.fine, l.told)
			}
			if load.error == "" && l.fine == 0 {
				t.Errorf("no client was served: %v", l.told)
			}
			fmt.Fprintf(&table, "%-60s %5d served, %4d refused %6.1f s %4d MB  %.110s\n", load.kind, l.fine, l.refused, time.Since(began).Seconds(), peak>>20, seen)

			// An ordinary client is served afterwards, unless several addresses together hold all the memory for sessions.
			s := l.stranger(t, "127.0.9.9")
			if r := s.post(l.URL, "", strangeInit); r.Status != http.StatusOK && (r.Status != http.StatusTooManyRequests || !strings.Contains(r.Body, "--memory")) {
				t.Errorf("another client, afterwards: %d %s", r.Status, r.Body)
			}
		})
	}
	t.Logf("of %d MB at the most:\n%s", mostMemory>>20, table.String())
}

// peak returns the peak memory of the program.
func (p *program) peak(t *testing.T) int64 {
	status := mcptest.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)))(t)
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no VmHWM: %s", status)
	}
	kib, _ := strconv.ParseInt(string(found[1]), 10, 64)
	return kib << 10
}

// memory returns the bytes that the program counts against --memory, by its parts.
func memory(t *testing.T, admin string) map[string]float64 {
	t.Helper()
	parts := make(map[string]float64)
	for _, found := range regexp.MustCompile(`holdfast_memory_bytes{part="(\w+)"} (\S+)`).FindAllStringSubmatch(figuresOf(t, admin), -1) {
		parts[found[1]], _ = strconv.ParseFloat(found[2], 64)
	}
	return parts
}

// All memory that was counted is released, however calls and sessions end: answered, cancelled, cut, with their
// server killed, deleted, or expired.
func TestMemoryIsGivenBack(t *testing.T) {
	t.Parallel()
	command, pids := marked(`exec "$1" big`, os.Args[0])
	admin := testport.Addr(t)
	p := serve(t, append([]string{"--admin", admin, "--session-ttl", "2s", "--drain", "1s"}, command...)...)
	s := p.stranger(t, "127.0.0.1")
	call := func(id int, arguments string) string { return mcptest.Call(id, "big", arguments) }
	// begin writes a request, and returns its connection.
	begin := func(session, body string) net.Conn {
		t.Helper()
		c := mcptest.Must(net.Dial("tcp", p.Addr))(t)
		t.Cleanup(func() { c.Close() })
		r, err := mcptest.NewRequest(t.Context(), http.MethodPost, p.URL, body, "Mcp-Session-Id", session)
		if err != nil || r.Write(c) != nil {
			t.Fatal("it is not written")
		}
		return c
	}
	stalled := call(7, `{"n":300000,"stall":true}`)
	sessions := []string{s.begin(true), s.begin(true)}
	stay := pids()
	sessions = append(sessions, s.begin(true), s.begin(true))
	var listening []*mcptest.Stream
	for _, id := range sessions { // no session expires before its client has done all
		listening = append(listening, (&mcptest.Client{URL: p.URL, Session: id}).Stream(t, http.MethodGet, ""))
	}
	if got := memory(t, admin); got["kept"] < 4*4<<10 {
		t.Errorf("four sessions count for %v bytes", got)
	}
	for i, id := range sessions {
		s.post(p.URL, id, fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":"x:%d"}}`, i))
		if r := s.post(p.URL, id, call(3, `{"n":2000000}`)); r.Status != http.StatusOK || !strings.Contains(r.Body, "xxx") {
			t.Fatalf("a call: %d %.200s", r.Status, r.Body)
		}
	}
	var conns []net.Conn
	for _, id := range sessions {
		conns = append(conns, begin(id, stalled))
	}
	mcptest.Eventually(t, "four messages to be read", time.Minute, func() bool { return memory(t, admin)["in_flight"] > 4*300_000 })
	if r := s.post(p.URL, sessions[0], `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`); r.Status != http.StatusAccepted {
		t.Errorf("cancel: %d %s", r.Status, r.Body)
	}
	conns[1].Close() // the call goes on, and its session is deleted below
	for _, pid := range pids() {
		if !slices.Contains(stay, pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	// Clients without a session: one reads its answer, one does not, and one listens, and is cut.
	body := mcptest.ModernRequest(1, "tools/call", `{}`, `"name":"big","arguments":{"n":2000000}`)
	if r := s.post(p.URL, "", body); r.Status != http.StatusOK || !strings.Contains(r.Body, "xxx") {
		t.Errorf("a call without a session: %d %.200s", r.Status, r.Body)
	}
	conns = append(conns, begin("", body))
	_, _ = conns[4].Read(make([]byte, 16))
	conns[4].Close()
	conns = append(conns, begin("", mcptest.ModernRequest(1, "subscriptions/listen", `{}`, `"notifications":{"resourceSubscriptions":["x:1"]}`)))
	_, _ = conns[5].Read(make([]byte, 16))
	conns[5].Close()
	for _, id := range sessions[:3] { // the last session expires
		r, err := (&mcptest.Client{URL: p.URL, Session: id, HTTP: s.http}).Exchange(t.Context(), http.MethodDelete, "")
		if err != nil || r.Status != http.StatusNoContent {
			t.Fatalf("DELETE: %d %v", r.Status, err)
		}
	}
	for _, c := range conns {
		c.Close()
	}
	for _, stream := range listening {
		stream.Close()
	}
	s.http.CloseIdleConnections()
	var left map[string]float64
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if left = memory(t, admin); left["kept"] == 0 && left["in_flight"] == 0 && left["connections"] == 0 {
			break
		}
	}
	if len(left) != 3 || left["kept"] != 0 || left["in_flight"] != 0 || left["connections"] != 0 {
		t.Errorf("in the end the program counts %v", left)
	}
}
