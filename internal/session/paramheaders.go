package session

import (
	"context"
	"net/http"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// headersWait bounds how long a modern call waits for the list of tools, once in a
// conversation. A call that waits in vain is not checked.
const headersWait = 2 * time.Second

// headedTools are the tools with arguments that headers repeat. Nothing is kept of others.
type headedTools map[string][]protocol.ParamHeader

// headersOf returns the arguments that headers repeat, by the inputSchema of a tool. Clients do not show a
// tool whose annotations are invalid, so there is nothing to check.
func headersOf(schema []byte) []protocol.ParamHeader {
	headers, err := protocol.ParamHeaders(schema)
	if err != nil {
		return nil
	}
	return headers
}

// learn takes in what of a tool's arguments headers repeat.
func (t *headedTools) learn(name string, headers []protocol.ParamHeader) {
	if len(headers) == 0 {
		delete(*t, name)
		return
	}
	if *t == nil {
		*t = make(headedTools)
	}
	(*t)[name] = headers
}

// CheckParamHeaders returns an error unless the headers of a modern tools/call repeat the
// arguments that the tool's inputSchema says they do. The backend's list of tools is read
// before the first call.
func (s *Session) CheckParamHeaders(ctx context.Context, m *jsonrpc.Message, header http.Header) error {
	if m.Method != protocol.MethodCallTool {
		return nil
	}
	headers := s.paramHeaders(ctx, m, header)
	if len(headers) == 0 {
		return nil
	}
	arguments := protocol.Arguments(headers, jsonrpc.Field(m.Params, "arguments"))
	for i, h := range headers {
		if err := h.Check(header.Values(protocol.HeaderParam+h.Name), arguments[i]); err != nil {
			return err
		}
	}
	return nil
}

// paramHeaders returns the arguments of a call that headers repeat.
func (s *Session) paramHeaders(ctx context.Context, m *jsonrpc.Message, header http.Header) []protocol.ParamHeader {
	s.mu.Lock()
	if s.tools.complete || s.backend.link == nil || s.backend.link.conn == nil {
		defer s.mu.Unlock()
		return s.tools.headed.of(m)
	}
	learning := s.learnTools(s.askingFor(ctx, m, header))
	s.mu.Unlock()
	if learning == nil {
		return nil
	}
	awaitTools(ctx, learning, headersWait)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tools.headed.of(m)
}

// of returns the arguments of a call that headers repeat. Nobody changes them.
func (t headedTools) of(m *jsonrpc.Message) []protocol.ParamHeader {
	if len(t) == 0 {
		return nil
	}
	return t[toolOf(m)]
}

// askingFor returns what a request of our own comes with that is made for the sake of a call.
func (s *Session) askingFor(ctx context.Context, m *jsonrpc.Message, header http.Header) backend.Inbound {
	in := backend.Inbound{Context: context.WithoutCancel(ctx), Header: header}
	if s.modern != "" {
		in.Params = modernParams([]byte("{}"), m.Params, s.modern)
	}
	return in
}
