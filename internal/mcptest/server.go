package mcptest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/jsonrpc"
)

// NewLine stands for the end of a line within a message of a [Script], where a line end is allowed.
const NewLine = "⏎"

// A Script is a server: it returns its answer to a message, or "". It hands messages before that, such as a question or progress,
// to say, which does not block. Each line of a text is a message. A script may be called for a message while it works at others.
// It gets the responses to its own requests, too.
type Script func(m jsonrpc.Message, say func(text string)) (answer string)

// Stdio runs a script on stdin and stdout of this process until stdin is closed. It is for a test binary that a test starts as a
// server. Requests are handled concurrently, other messages one at a time.
func Stdio(script Script) {
	talk(script, func(text string) {
		_, _ = os.Stdout.WriteString(strings.ReplaceAll(text, NewLine, "\n") + "\n")
	}, linesIn(os.Stdin))
}

// linesIn returns a function that returns the next line of a reader.
func linesIn(r io.Reader) func() ([]byte, error) {
	lines := bufio.NewReaderSize(r, 64<<10)
	return func() ([]byte, error) { return lines.ReadBytes('\n') }
}

// talk runs a script on a connection: next reads a message, and say writes one. The messages of one text are written together: no
// message that the script says on another goroutine comes between.
func talk(script Script, say func(line string), next func() ([]byte, error)) {
	var mu sync.Mutex
	each := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		for line := range strings.SplitSeq(text, "\n") {
			if line != "" {
				say(line)
			}
		}
	}
	for {
		text, err := next()
		if err != nil {
			return
		}
		m, err := jsonrpc.Parse(text)
		if err != nil {
			continue
		}
		if m.Kind != jsonrpc.Request {
			each(script(m, each))
			continue
		}
		go func() { each(script(m, each)) }()
	}
}

// A Server runs scripts over HTTP, one for each session. The path of a URL selects the transport:
//
//	/sse   HTTP+SSE of 2024-11-05
//	/ws    a WebSocket
//	/json  Streamable HTTP: all messages that answer a request are one body
//	/get   the same, but in a session the messages before an answer go to the stream of a GET
//	else   Streamable HTTP: a request is answered with a stream
type Server struct {
	Script Script        // the script of all sessions
	New    func() Script // returns the script of a new session; nil: Script
	// Open: a request other than initialize that names no session gets a script of its own.
	Open bool
	// Listens: a GET in a session opens a stream.
	Listens bool
	// Stateless: no session has an id, over Streamable HTTP. Each message gets a script of its own.
	Stateless bool

	mu       sync.Mutex
	sessions map[string]*session
}

type session struct {
	script Script
	stream chan string // messages for the stream of a GET
}

// Serve serves a handler, such as a [Server], until the end of the test, and returns the URL, without a path.
func Serve(t testing.TB, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// Early lets the handler of a proxy answer before it has read the end of a request. By default net/http closes the body of the request then, and a
// [net/http/httputil.ReverseProxy] closes its connection to the server, and cuts the answer.
func Early(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		h.ServeHTTP(w, r)
	})
}

func (s *Server) script() Script {
	if s.New == nil {
		return s.Script
	}
	return s.New()
}

// begin begins a session.
func (s *Server) begin() (id string, begun *session) {
	begun = &session{s.script(), make(chan string, 1000)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions == nil {
		s.sessions = make(map[string]*session)
	}
	id = fmt.Sprint("session-", len(s.sessions))
	s.sessions[id] = begun
	return id, begun
}

func (s *Server) session(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/ws":
		s.socket(w, r)
	case r.URL.Path == "/sse" && r.Method == http.MethodGet:
		id, begun := s.begin()
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "event: endpoint\ndata: /said?s=%s\n\n", id)
		begun.listen(w, r)
	case r.Method == http.MethodGet && s.Listens:
		begun := s.session(r.Header.Get("Mcp-Session-Id"))
		if begun == nil {
			http.Error(w, "no session", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		begun.listen(w, r)
	case r.Method == http.MethodDelete:
	case r.Method != http.MethodPost, r.URL.Path == "/sse":
		w.WriteHeader(http.StatusMethodNotAllowed)
	default:
		s.post(w, r)
	}
}

// listen writes the messages for the stream until its client leaves.
func (begun *session) listen(w http.ResponseWriter, r *http.Request) {
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case text := <-begun.stream:
			event(w, text)
		case <-r.Context().Done():
			return
		}
	}
}

// event writes an event for each line of a text.
func event(w io.Writer, text string) {
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", strings.ReplaceAll(line, NewLine, "\ndata: "))
		}
	}
}

// post serves a POST.
func (s *Server) post(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	m, err := jsonrpc.Parse(body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	id := r.Header.Get("Mcp-Session-Id")
	begun := s.session(id)
	switch {
	case r.URL.Path == "/said":
		s.session(r.URL.Query().Get("s")).said(w, m)
		return
	case s.Stateless:
		begun = &session{script: s.script()}
	case m.Method == "initialize":
		id, begun = s.begin()
		w.Header().Set("Mcp-Session-Id", id)
	case s.Open && id == "":
		begun = &session{script: s.script()}
	}
	switch {
	case begun == nil:
		http.Error(w, "no session", http.StatusNotFound)
	case m.Kind != jsonrpc.Request:
		begun.script(m, func(string) {})
		w.WriteHeader(http.StatusAccepted)
	case r.URL.Path == "/json", r.URL.Path == "/get" && m.Method != "initialize":
		begun.answer(w, m, r.URL.Path == "/get")
	default:
		w.Header().Set("Content-Type", "text/event-stream")
		say := func(text string) {
			event(w, text)
			_ = http.NewResponseController(w).Flush()
		}
		say(begun.script(m, say))
	}
}

// answer answers a request with one body. elsewhere says that messages before the answer go to the stream of a GET.
func (begun *session) answer(w http.ResponseWriter, m jsonrpc.Message, elsewhere bool) {
	var before strings.Builder
	answer := begun.script(m, func(text string) {
		if elsewhere {
			begun.stream <- text
			return
		}
		before.WriteString(text + "\n")
	})
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, strings.ReplaceAll(before.String()+answer, NewLine, "\n"))
}

// said takes a message of HTTP+SSE. The answer goes to the stream of the session.
func (begun *session) said(w http.ResponseWriter, m jsonrpc.Message) {
	if begun == nil {
		http.Error(w, "no session", http.StatusNotFound)
		return
	}
	w.WriteHeader(http.StatusAccepted)
	say := func(text string) { begun.stream <- text }
	if m.Kind != jsonrpc.Request {
		say(begun.script(m, say))
		return
	}
	go func() { say(begun.script(m, say)) }()
}

func (s *Server) socket(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(-1)
	talk(s.script(), func(line string) {
		// A text may have bytes that are not UTF-8: RFC 6455 forbids that, but servers send them.
		_ = ws.Write(r.Context(), websocket.MessageText, []byte(strings.ReplaceAll(line, NewLine, "\n")))
	}, func() ([]byte, error) {
		_, text, err := ws.Read(r.Context())
		return text, err
	})
}

// Endpoints returns a mux with a handler at /mcp, and for clients of 2024-11-05 at /sse.
func Endpoints(h interface {
	http.Handler
	SSE(path string) http.Handler
}) *http.ServeMux {
	mux, pair := http.NewServeMux(), h.SSE("/messages")
	mux.Handle("/mcp", h)
	mux.Handle("/sse", pair)
	mux.Handle("/messages", pair)
	return mux
}

// ShutDownAtEnd shuts a handler down at the end of the test, which may take as long as within.
func ShutDownAtEnd(t testing.TB, h interface {
	Shutdown(ctx context.Context) error
}, within time.Duration) {
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), within)
		defer stop()
		_ = h.Shutdown(ctx) // calls in flight are cut short
	})
}
