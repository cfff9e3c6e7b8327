package bridge

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A question beyond the messages that are held for a host which is not ready is answered: its server waits for that.
func TestHoldFull(t *testing.T) {
	t.Parallel()
	answers := make(chan string, 1)
	url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		switch {
		case err != nil || r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		case !bytes.Contains(body, []byte(`"method"`)):
			w.WriteHeader(http.StatusAccepted)
			answers <- string(body)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range maxHeld {
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"params\":{\"i\":%d}}\n\n", i)
		}
		fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"roots/list\"}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	b := newBridge(t.Context(), url, io.Discard, &Options{Transport: "http"})
	conn := mcptest.Must(b.connect(nil))(t)
	b.mu.Lock()
	b.phase = holding
	b.mu.Unlock()
	m := mcptest.Must(jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)))(t)
	mcptest.Check(t, conn.Send(t.Context(), m))
	select {
	case got := <-answers:
		if !strings.Contains(got, `"id":"q"`) || !strings.Contains(got, `"error"`) {
			t.Errorf("the server got %s", got)
		}
	case <-time.After(soon):
		t.Error("the question has no answer")
	}
	b.leave(t.Context(), false)
}
