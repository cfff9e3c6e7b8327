package floor

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
)

const (
	lightOpening = `{"jsonrpc":"2.0","id":`
	lightResult  = `,"result":{"content":[{"type":"text","text":"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"}]}}`
	// lightEvent begins an event. Its id is not complete: a client drops an event that has the id
	// of another.
	lightEvent  = "event: message\nid: AAAAAAAAAAAAAAAAAAAAAA.1."
	lightEvents = 100 // of a call on /events
	lightText   = 64  // bytes of text in each
)

// NewLight returns the server against which clients are measured: the floor's answers, with the id
// of the request, and just enough of the protocol for a client to begin a session. It serves
//
//	/json    a short answer
//	/sse     a priming event, then the same answer as an event
//	/events  a priming event, then 100 progress events and the answer, as one write
//	/wait    a priming event, and nothing more
//
// It ignores the names of tools.
func NewLight() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /json", light(func(w http.ResponseWriter, _ *http.Request, id []byte) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(lightAnswer("", id, ""))
	}))
	mux.HandleFunc("POST /sse", light(func(w http.ResponseWriter, _ *http.Request, id []byte) {
		open(w, priming)
		_, _ = w.Write(lightAnswer(lightEvent+"10001\ndata: ", id, "\n\n"))
	}))
	var all strings.Builder
	for i := range lightEvents {
		all.WriteString(lightEvent + strconv.Itoa(10001+i) + "\ndata: " + progress + strings.Repeat("x", lightText) + "\"}}\n\n")
	}
	all.WriteString(lightEvent + strconv.Itoa(10001+lightEvents) + "\ndata: ")
	mux.HandleFunc("POST /events", light(func(w http.ResponseWriter, _ *http.Request, id []byte) {
		open(w, priming)
		_, _ = w.Write(lightAnswer(all.String(), id, "\n\n"))
	}))
	mux.HandleFunc("POST /wait", light(func(w http.ResponseWriter, r *http.Request, _ []byte) {
		open(w, priming)
		<-r.Context().Done()
	}))
	mux.HandleFunc("DELETE /", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	return mux
}

func lightAnswer(before string, id []byte, after string) []byte {
	b := make([]byte, 0, len(before)+len(lightOpening)+len(id)+len(lightResult)+len(after))
	b = append(b, before...)
	b = append(b, lightOpening...)
	b = append(b, id...)
	b = append(b, lightResult...)
	return append(b, after...)
}

// light answers the messages that begin a session itself, and other requests with answer.
func light(answer func(http.ResponseWriter, *http.Request, []byte)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		_, id, ok := bytes.Cut(body, []byte(`"id":`))
		if !ok {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		id = id[:bytes.IndexAny(id, ",}")]
		if bytes.Contains(body, []byte(`"initialize"`)) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Mcp-Session-Id", "light")
			_, _ = io.WriteString(w, lightOpening+string(id)+`,"result":{"protocolVersion":"2025-11-25",`+
				`"capabilities":{"tools":{}},"serverInfo":{"name":"light","version":"1"}}}`)
			return
		}
		answer(w, r, id)
	}
}
