package modern

import (
	"context"
	"net/http"

	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// An Input is a request of a backend for the client's input.
type Input struct {
	ID      []byte // from the session
	Message []byte
}

// Respond hands the client's input for the open requests to the backend, and returns the requests
// without input.
func Respond(ctx context.Context, s *session.Session, m *jsonrpc.Message, open []jsonrpc.Message) (missing []Input, err error) {
	header, results := http.Header{}, make(map[string][]byte, len(open))
	for i := range open {
		results[inputKey(open[i].ID)] = nil
	}
	jsonrpc.Each(jsonrpc.Field(m.Params, "inputResponses"), func(name, value []byte) {
		if _, wanted := results[string(name)]; wanted {
			results[string(name)] = value
		}
	})
	for i := range open {
		q := &open[i]
		result := results[inputKey(q.ID)]
		if len(result) == 0 || result[0] != '{' {
			missing = append(missing, Input{q.ID, q.Raw})
			continue
		}
		raw := jsonrpc.AppendResult(nil, q.ID, result)
		response := jsonrpc.Message{Kind: jsonrpc.Response, ID: q.ID, Result: jsonrpc.Field(raw, "result"), Raw: raw}
		if err := s.Send(ctx, response, header); err != nil {
			return missing, err
		}
	}
	return missing, nil
}

// AppendInput appends a request of the backend to dst, inputRequests without its end. The keys differ.
func AppendInput(dst, id []byte, m *jsonrpc.Message) []byte {
	if len(dst) > 1 {
		dst = append(dst, ',')
	}
	return append(append(append(dst, jsonrpc.Quote(inputKey(id))...), ':'), inputText(m)...)
}

// inputText returns a request of the backend for inputRequests. It always has params: some
// clients cannot read a request without.
func inputText(m *jsonrpc.Message) []byte {
	params := jsonrpc.Field(m.Raw, "params")
	if params == nil {
		params = []byte(`{}`)
	}
	request, _ := jsonrpc.Set([]byte(`{}`), jsonrpc.Field(m.Raw, "method"), "method")
	request, _ = jsonrpc.Set(request, params, "params")
	return request
}

// inputKey returns the key of a backend's request in inputRequests, which no other request
// of its carrier has.
func inputKey(id []byte) string { return "input-" + string(jsonrpc.Key(id)) }
