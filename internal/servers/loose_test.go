package servers_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"holdfast/internal/protocol"
)

// A looseServer reads messages on stdio as loosely as all servers in use taken together: the method before the id,
// names of members in upper or lower case, also as Python would write them, the last of equal members, and a list of
// one name as that name. It never answers a cancelled request.
//
// The tool "work" emits progress with the text of its call, if that has a token, and returns the text. A call
// with a text that begins with "held" waits for a call of "release" with the same text. "seen" returns the
// names of the tools that were called. "spray" emits the messages in its arguments, with any ids and tokens.
type looseServer struct {
	modern bool // the server speaks 2026-07-28, and nothing else

	mu      sync.Mutex
	out     io.Writer
	running map[string]chan struct{} // closed when a call is cancelled, by its id
	held    map[string]chan struct{} // closed by a call of "release", by the text
	seen    []string
}

// looseMeta has the members of _meta that a loose server reads.
type looseMeta struct {
	Token  json.RawMessage `json:"progressToken"`
	Python json.RawMessage `json:"progress_token"`
}

func (m *looseMeta) token() json.RawMessage {
	if m.Token == nil {
		return m.Python
	}
	return m.Token
}

type looseParams struct {
	Name      any
	Meta      looseMeta       `json:"_meta"`
	RequestID json.RawMessage `json:"requestId"`
	Python    json.RawMessage `json:"request_id"`
	Version   string          `json:"protocolVersion"`
	Arguments struct {
		Text  string
		Steps int
		Lines []string
	}
}

// runLoose runs a loose server on stdin and stdout.
func runLoose(modern bool) {
	s := &looseServer{modern: modern, out: os.Stdout, running: make(map[string]chan struct{}), held: make(map[string]chan struct{})}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s.take(lines.Bytes())
	}
}

func (s *looseServer) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintf(s.out, format+"\n", args...)
}

func (s *looseServer) result(id json.RawMessage, format string, args ...any) {
	if id != nil {
		kind := ""
		if s.modern {
			kind = `"resultType":"complete"`
			if format != "" {
				kind += ","
			}
		}
		s.say(`{"jsonrpc":"2.0","id":%s,"result":{%s%s}}`, id, kind, fmt.Sprintf(format, args...))
	}
}

func (s *looseServer) text(id json.RawMessage, text string) {
	quoted, _ := json.Marshal(text)
	s.result(id, `"content":[{"type":"text","text":%s}]`, quoted)
}

// take handles one message.
func (s *looseServer) take(line []byte) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params looseParams
	}
	_ = json.Unmarshal(line, &m) // members of another type are left out
	p := &m.Params
	switch m.Method {
	case "server/discover":
		if s.modern {
			s.result(m.ID, `"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"loose","version":"1"}}`)
			return
		}
		s.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID)
	case "initialize":
		if s.modern {
			s.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"2026-07-28","data":{"supported":["2026-07-28"]}}}`, m.ID)
			return
		}
		s.result(m.ID, `"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"loose","version":"1"}`, p.Version)
	case "tools/list":
		s.result(m.ID, `"tools":[{"name":"work","inputSchema":{"type":"object"}},{"name":"release","inputSchema":{"type":"object"}},{"name":"seen","inputSchema":{"type":"object"}},{"name":"spray","inputSchema":{"type":"object"}}]`)
	case protocol.MethodCancelled:
		id := p.RequestID
		if id == nil {
			id = p.Python
		}
		s.mu.Lock()
		if stop := s.running[string(id)]; stop != nil {
			delete(s.running, string(id))
			close(stop)
		}
		s.mu.Unlock()
	case "tools/call":
		s.call(m.ID, p)
	default:
		if m.ID != nil && m.Method != "" && !strings.HasPrefix(m.Method, "notifications/") {
			s.result(m.ID, "")
		}
		if m.Method == protocol.MethodSubscriptions && len(os.Args) > 1 {
			_ = os.WriteFile(os.Args[1], nil, 0o600) // the file shows a test that the listen has arrived
		}
	}
}

// call handles a call of a tool.
func (s *looseServer) call(id json.RawMessage, p *looseParams) {
	name := fmt.Sprint(p.Name)
	if list, ok := p.Name.([]any); ok && len(list) == 1 {
		name = fmt.Sprint(list[0])
	}
	s.mu.Lock()
	s.seen = append(s.seen, name)
	s.mu.Unlock()
	text := p.Arguments.Text
	switch name {
	case "work":
		stop := make(chan struct{})
		s.mu.Lock()
		s.running[string(id)] = stop
		var held chan struct{}
		if strings.HasPrefix(text, "held") {
			held = s.hold(text)
		}
		s.mu.Unlock()
		go s.work(id, p, stop, held)
		return
	case "release":
		s.mu.Lock()
		close(s.hold(text))
		delete(s.held, text)
		s.mu.Unlock()
	case "seen":
		s.mu.Lock()
		text = strings.Join(s.seen, " ")
		s.mu.Unlock()
	case "spray":
		for _, line := range p.Arguments.Lines {
			s.say("%s", line)
		}
	}
	s.text(id, text)
}

// hold returns the channel for which calls with a text wait. s.mu is held.
func (s *looseServer) hold(text string) chan struct{} {
	held := s.held[text]
	if held == nil {
		held = make(chan struct{})
		s.held[text] = held
	}
	return held
}

// work runs the tool "work".
func (s *looseServer) work(id json.RawMessage, p *looseParams, stop, held chan struct{}) {
	text := p.Arguments.Text
	for i := range min(p.Arguments.Steps, 10) {
		if token := p.Meta.token(); token != nil {
			s.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"message":%q}}`, token, i+1, text)
		}
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond):
		}
	}
	if held != nil {
		select {
		case <-stop:
			return
		case <-held:
		}
	}
	s.mu.Lock()
	gone := s.running[string(id)] != stop
	delete(s.running, string(id))
	s.mu.Unlock()
	if !gone {
		s.text(id, text)
	}
}
