// Package floor is bare net/http that writes the same bytes as a server of the benchmarks, known
// beforehand, and does nothing else. No server of the protocol can cost less; how much more a
// server costs is its own doing.
package floor

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
)

const (
	result = `{"jsonrpc":"2.0","id":10000000,"result":{"content":[{"type":"text","text":"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"}]}}`
	modern = `{"jsonrpc":"2.0","id":10000000,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"bench","version":"1.0.0"}},` +
		`"content":[{"type":"text","text":"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"}]}}`
	task = `{"jsonrpc":"2.0","id":10000000,"result":{"resultType":"complete","taskId":"AAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAA1.mhz00000","status":"working",` +
		`"createdAt":"2026-07-28T00:00:00.000Z","lastUpdatedAt":"2026-07-28T00:00:00.000Z","ttlMs":600000,"pollIntervalMs":500}}`
	eventID  = "AAAAAAAAAAAAAAAAAAAAAA.1.10000"
	priming  = "id: " + eventID + "\nretry: 1000\ndata: \n\n"
	event    = "event: message\nid: " + eventID + "\ndata: "
	progress = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"bench","progress":10000,"total":10000,"message":"`
)

// New returns the handler:
//
//	POST /json                      a short answer
//	POST /modern                    the same answer in revision 2026-07-28
//	POST /task                      the answer to tasks/get
//	POST /sse                       a priming event, then the same answer as an event
//	POST /events?n=&size=[&flush=0] n progress events, each flushed, or with flush=0 not
//	GET  /events?n=&size=[&flush=0] the same
//	GET  /idle                      a stream without events
//	POST /wait                      a priming event, and nothing more
func New() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /json", serveJSON(result))
	mux.HandleFunc("POST /modern", serveJSON(modern))
	mux.HandleFunc("POST /task", serveJSON(task))
	mux.HandleFunc("POST /sse", serveSSE)
	mux.HandleFunc("/events", serveEvents)
	mux.HandleFunc("GET /idle", func(w http.ResponseWriter, r *http.Request) {
		open(w, "")
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /wait", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		open(w, priming)
		<-r.Context().Done()
	})
	return mux
}

func serveJSON(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	}
}

func serveSSE(w http.ResponseWriter, r *http.Request) {
	if _, err := io.ReadAll(r.Body); err != nil {
		return
	}
	open(w, priming)
	_, _ = io.WriteString(w, event+result+"\n\n")
	flush(w)
}

func serveEvents(w http.ResponseWriter, r *http.Request) {
	if _, err := io.ReadAll(r.Body); err != nil {
		return
	}
	q := r.URL.Query()
	n, _ := strconv.Atoi(q.Get("n"))
	size, _ := strconv.Atoi(q.Get("size"))
	each := q.Get("flush") != "0"
	open(w, priming)
	var one bytes.Buffer
	one.WriteString(event + progress + strings.Repeat("x", size) + "\"}}\n\n")
	for range n {
		if _, err := w.Write(one.Bytes()); err != nil {
			return
		}
		if each {
			flush(w)
		}
	}
	_, _ = io.WriteString(w, event+`{"jsonrpc":"2.0","id":10000000,"result":{"content":[{"type":"text","text":"done"}]}}`+"\n\n")
}

// open begins an event stream.
func open(w http.ResponseWriter, first string) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, first)
	flush(w)
}

func flush(w http.ResponseWriter) {
	_ = http.NewResponseController(w).Flush()
}
