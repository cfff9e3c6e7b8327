package placement

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A pipeNode is another node that accepts pipes as connections.
type pipeNode struct {
	server *http.Server
	conns  chan net.Conn
	mu     sync.Mutex
	ends   []net.Conn
}

func (n *pipeNode) Accept() (net.Conn, error) {
	c, ok := <-n.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (n *pipeNode) Close() error   { return nil }
func (n *pipeNode) Addr() net.Addr { return &net.TCPAddr{} }

func (n *pipeNode) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	n.mu.Lock()
	n.ends = append(n.ends, there)
	n.mu.Unlock()
	n.conns <- there
	return here, nil
}

func (n *pipeNode) dialled() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.ends)
}

// ended returns an error if a connection is still open at the client.
func (n *pipeNode) ended(i int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	_ = n.ends[i].SetWriteDeadline(time.Now())
	if _, err := n.ends[i].Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// A connection is used again, for one request at a time, and not after its end.
func TestNodeClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan struct{}, 1)
		n := &pipeNode{conns: make(chan net.Conn)}
		n.server = &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			switch string(body) {
			case "hang":
				asked <- struct{}{}
				<-r.Context().Done()
			case "nothing":
				w.WriteHeader(http.StatusAccepted)
			case "stream":
				w.Header().Set("Trailer", "T")
				for range 3 {
					_, _ = io.WriteString(w, "stream")
					_ = http.NewResponseController(w).Flush()
				}
				w.Header().Set("T", "end")
			default:
				_, _ = w.Write(body)
			}
		})}
		go func() { _ = n.server.Serve(n) }()
		client := &nodeClient{transport: &http.Transport{DialContext: n.dial}}
		ask := func(ctx context.Context, what string) (*http.Response, bool, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://n/", strings.NewReader(what))
			if err != nil {
				t.Fatal(err)
			}
			return client.roundTrip(req, "n")
		}
		want := func(what, answer string, dialled int) {
			t.Helper()
			res, _, err := ask(t.Context(), what)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err != nil || string(got) != answer || what == "stream" && res.Trailer.Get("T") != "end" {
				t.Errorf("%s: %q, %v, trailer %v", what, got, err, res.Trailer)
			}
			if n.dialled() != dialled {
				t.Errorf("%s: %d connections, want %d", what, n.dialled(), dialled)
			}
		}
		want("a", "a", 1)
		want("nothing", "", 1)
		want("stream", "streamstreamstream", 1)
		_ = n.ends[0].Close() // while the connection is idle
		want("b", "b", 2)

		res, _, err := ask(t.Context(), "stream")
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close() // before the body's end
		want("c", "c", 3)

		ctx, stop := context.WithCancel(t.Context())
		go func() {
			<-asked
			stop()
		}()
		if _, dialled, err := ask(ctx, "hang"); !dialled || !errors.Is(err, context.Canceled) {
			t.Errorf("its client has left: %v, dialled %v", err, dialled)
		}
		want("d", "d", 4)
		time.Sleep(idleNodeFor + time.Second)
		want("e", "e", 5)
		client.forget("n")
		want("f", "f", 6)
		time.Sleep(2*idleNodeFor + time.Second) // no request follows, as the node is gone
		if err := n.ended(5); err != nil {
			t.Errorf("the connection stays open: %v", err)
		}
		want("f", "f", 7)
		client.close()
		want("g", "g", 8)
		want("h", "h", 9)
		close(n.conns)
		_ = n.server.Close()
	})
}
