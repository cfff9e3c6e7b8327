package client_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing/iotest"

	"holdfast/jsonrpc"
)

// withheld lists the ways back to a call that a server does not offer.
type withheld struct {
	link   bool // no stream URL
	ids    bool // no event ids
	policy bool // no resume tokens
	keys   bool // no idempotency keys
}

func (s withheld) wrap(h http.Handler) http.Handler {
	if s == (withheld{}) {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			h.ServeHTTP(w, r)
			return
		}
		if s.policy && r.Method == http.MethodPost {
			r.Body = deafTo(r.Body)
		}
		sw := &stripper{ResponseWriter: w, withheld: s}
		h.ServeHTTP(sw, r)
		sw.flush()
	})
}

// deafTo returns a body in which the client does not declare that it knows resume tokens.
func deafTo(body io.ReadCloser) io.ReadCloser {
	text, err := io.ReadAll(body)
	if err != nil {
		return io.NopCloser(io.MultiReader(bytes.NewReader(text), iotest.ErrReader(err)))
	}
	return io.NopCloser(bytes.NewReader(bytes.Replace(text, []byte(`"resumableRequests":`), []byte(`"resumableRequestz":`), 1)))
}

// stripper removes the withheld ways back from a response.
type stripper struct {
	http.ResponseWriter
	withheld
	events bool
	began  bool
	rest   []byte // the incomplete part of an event, or of JSON
}

func (s *stripper) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *stripper) WriteHeader(status int) {
	s.begin()
	s.ResponseWriter.WriteHeader(status)
}

func (s *stripper) begin() {
	if s.began {
		return
	}
	s.began = true
	h := s.Header()
	s.events = strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
	if s.link {
		h.Del("Link")
	}
	if s.keys {
		h.Del("Content-Length")
	}
}

func (s *stripper) Write(p []byte) (int, error) {
	s.begin()
	s.rest = append(s.rest, p...)
	if !s.events {
		return len(p), nil
	}
	for {
		end := bytes.Index(s.rest, []byte("\n\n"))
		if end < 0 {
			return len(p), nil
		}
		event := s.event(s.rest[:end+1])
		s.rest = s.rest[end+2:]
		if len(event) == 0 {
			continue
		}
		if _, err := s.ResponseWriter.Write(append(event, '\n')); err != nil {
			return 0, err
		}
	}
}

// event removes the withheld lines from an event.
func (s *stripper) event(text []byte) []byte {
	var out []byte
	for line := range bytes.Lines(text) {
		data, isData := bytes.CutPrefix(line, []byte("data: "))
		switch {
		case s.ids && bytes.HasPrefix(line, []byte("id:")):
			continue
		case isData && len(bytes.TrimSpace(data)) > 0:
			data = s.message(bytes.TrimSuffix(data, []byte("\n")))
			line = append(append([]byte("data: "), data...), '\n')
		}
		out = append(out, line...)
	}
	return out
}

// message removes the withheld members from a message.
func (s *stripper) message(data []byte) []byte {
	if s.keys && jsonrpc.Field(data, "result", "capabilities", "experimental", "holdfast/idempotencyKey") != nil {
		data, _ = jsonrpc.Set(data, []byte("{}"), "result", "capabilities", "experimental")
	}
	return data
}

// FlushError implements the method that http.ResponseController looks for.
func (s *stripper) FlushError() error {
	if !s.events {
		return nil
	}
	return http.NewResponseController(s.ResponseWriter).Flush()
}

// flush writes a body of JSON, which has to be whole first.
func (s *stripper) flush() {
	if s.events || len(s.rest) == 0 {
		return
	}
	_, _ = s.ResponseWriter.Write(s.message(s.rest))
}
