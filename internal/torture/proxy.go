package torture

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxRequest bounds the body of a request that a proxy reads, in bytes.
const maxRequest = 16 << 20

// A proxy is between one client, which makes one call at a time, and a server. It disturbs the connections of the
// call as the call's plan says. All other connections pass.
type proxy struct {
	to     *url.URL // the server
	pass   http.Handler
	client *http.Transport
	server *http.Server
	url    string
	ctx    context.Context //nolint:containedctx // of its connections to the server, which outlive those of the client
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu    sync.Mutex
	plan  plan
	left  int       // how many more connections of the call are disturbed
	begun bool      // the request of the call was seen
	at    time.Time // of the last disturbance; zero: none yet
}

// newProxy starts a proxy to the server at a URL.
func newProxy(to *url.URL) (*proxy, error) {
	client := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 16}
	p := &proxy{to: to, pass: passing(to, client, nil), client: client}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	at, server, err := serve(p, nil)
	if err != nil {
		return nil, err
	}
	p.server = server
	p.url = "http://" + at + to.RequestURI()
	return p, nil
}

// passing returns a handler that passes requests on to the scheme and host of a URL, and adds headers to them.
func passing(to *url.URL, client http.RoundTripper, header http.Header) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		FlushInterval: -1,
		Transport:     client,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: to.Scheme, Host: to.Host})
			maps.Copy(r.Out.Header, header)
		},
	}
}

// serve serves a handler on a port of its own. wrap may be nil.
func serve(h http.Handler, wrap func(net.Listener) net.Listener) (addr string, server *http.Server, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = l.Addr().String()
	if wrap != nil {
		l = wrap(l)
	}
	server = &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ErrorLog: discard}
	go func() { _ = server.Serve(l) }() // until Close
	return addr, server, nil
}

// close ends the proxy and its connections.
func (p *proxy) close() {
	p.cancel()
	_ = p.server.Close()
	p.wait.Wait()
	p.client.CloseIdleConnections()
}

// next begins the next call, and sets its plan.
func (p *proxy) next(plan plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan, p.left, p.begun, p.at = plan, plan.times, false, time.Time{}
	switch plan.kind {
	case clean, killed:
		p.left = 0
	case held, delayed, repeated, silent: // one connection only: if all were slow, the call would be slow
		p.left = 1
	}
}

// disturbed returns when the call was last disturbed; zero: it was not.
func (p *proxy) disturbed() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at
}

func (p *proxy) hit() {
	p.mu.Lock()
	p.at = time.Now()
	p.mu.Unlock()
}

// take returns the plan for a request, and whether the request has one: it belongs to the call, and left is not used
// up.
func (p *proxy) take(r *http.Request, body []byte) (plan, bool) {
	call := tagIn(body) != "" || bytes.Contains(body, []byte(`"requests/resume"`))
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.left == 0:
		return plan{}, false
	case call:
		p.begun = true
	case r.Method == http.MethodGet && p.begun && p.plan.kind == partly && (r.Header.Get("Last-Event-Id") != "" || r.URL.Path != p.to.Path):
		// The request resumes the call, or listens: both are disturbed.
	default:
		return plan{}, false
	}
	p.left--
	return p.plan, true
}

// readBody reads the body of a request. If the body is too large or breaks off, it answers the request.
func readBody(w http.ResponseWriter, r *http.Request) (body []byte, ok bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
	}
	return body, err == nil
}

// ServeHTTP implements [http.Handler].
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	plan, ok := p.take(r, body)
	if !ok {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		p.pass.ServeHTTP(w, r)
		return
	}
	hijacked, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	l := &line{p: p, plan: plan, client: hijacked.(*net.TCPConn), request: r, body: body}
	l.ctx, l.cancel = context.WithCancel(p.ctx)
	p.wait.Go(l.watch)
	l.carry()
}

// A line is one connection of a call that is disturbed.
type line struct {
	p       *proxy
	plan    plan
	client  *net.TCPConn
	request *http.Request
	body    []byte
	ctx     context.Context //nolint:containedctx // of the connection to the server
	cancel  context.CancelFunc
}

// watch ends the connection to the server when the client has ended its own, unless the plan's end is halfOpen.
func (l *line) watch() {
	stop := context.AfterFunc(l.p.ctx, func() { _ = l.client.Close() })
	defer stop()
	_, _ = io.Copy(io.Discard, l.client)
	if l.plan.end != halfOpen {
		l.cancel()
	}
	_ = l.client.Close()
}

// carry sends the request to the server, and to the client the part of the answer that the plan lets pass.
func (l *line) carry() {
	defer l.cancel()
	if l.plan.kind == unsent {
		l.cut()
		return
	}
	answer, err := l.send()
	if err == nil && l.plan.kind == repeated {
		_ = answer.Body.Close()
		l.p.hit()
		answer, err = l.send()
	}
	if err != nil {
		_ = l.client.Close()
		return
	}
	defer answer.Body.Close()
	stream := strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream")
	switch l.plan.kind {
	case unseen:
		l.sever(answer)
		return
	case silent:
		if l.plan.events == 0 {
			l.fallSilent(answer)
			return
		}
	case held:
		l.p.hit()
		l.sleep()
	}
	if stream {
		l.passEvents(answer)
		return
	}
	l.passWhole(answer)
}

// send sends the request to the server.
func (l *line) send() (*http.Response, error) {
	to := *l.request.URL
	to.Scheme, to.Host = l.p.to.Scheme, l.p.to.Host
	r, err := http.NewRequestWithContext(l.ctx, l.request.Method, to.String(), bytes.NewReader(l.body))
	if err != nil {
		return nil, err
	}
	r.Header = l.request.Header.Clone()
	for _, name := range []string{"Connection", "Te", "Transfer-Encoding", "Upgrade", "Keep-Alive"} {
		r.Header.Del(name)
	}
	return l.p.client.RoundTrip(r)
}

// head writes the header of the answer to the client. A length below 0 means a body in chunks.
func (l *line) head(answer *http.Response, length int) {
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 " + strconv.Itoa(answer.StatusCode) + " " + http.StatusText(answer.StatusCode) + "\r\n")
	h := answer.Header.Clone()
	for _, name := range []string{"Connection", "Content-Length", "Transfer-Encoding", "Keep-Alive"} {
		h.Del(name)
	}
	h.Set("Connection", "close")
	if length < 0 {
		h.Set("Transfer-Encoding", "chunked")
	} else {
		h.Set("Content-Length", strconv.Itoa(length))
	}
	_ = h.Write(&b)
	b.WriteString("\r\n")
	_, _ = l.client.Write(b.Bytes()) // a client that is gone is noticed by watch
}

// passWhole passes an answer that is not a stream.
func (l *line) passWhole(answer *http.Response) {
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		_ = l.client.Close()
		return
	}
	if l.plan.kind == delayed {
		l.p.hit()
		l.sleep()
	}
	l.head(answer, len(body))
	switch l.plan.kind {
	case partly:
		_, _ = l.client.Write(body[:len(body)/2])
		l.sever(answer)
	case silent:
		_, _ = l.client.Write(body[:len(body)/2])
		l.fallSilent(answer)
	default:
		_, _ = l.client.Write(body)
		_ = l.client.CloseWrite()
	}
}

// passEvents passes an event stream.
func (l *line) passEvents(answer *http.Response) {
	l.head(answer, -1)
	in, out := bufio.NewReader(answer.Body), httputil.NewChunkedWriter(l.client)
	for passed := 0; ; passed++ {
		if passed == l.plan.events {
			switch l.plan.kind {
			case partly:
				l.sever(answer)
				return
			case silent:
				l.fallSilent(answer)
				return
			}
		}
		event, err := readEvent(in)
		if l.plan.kind == delayed {
			l.p.hit()
			l.sleep()
		}
		_, _ = out.Write(event)
		if err != nil { // the end of the stream, or a cut of it
			if errors.Is(err, io.EOF) {
				_ = out.Close()
				_, _ = io.WriteString(l.client, "\r\n")
			}
			_ = l.client.CloseWrite()
			return
		}
	}
}

// readEvent reads up to the end of an event.
func readEvent(in *bufio.Reader) ([]byte, error) {
	var event []byte
	for {
		text, err := in.ReadBytes('\n')
		event = append(event, text...)
		if err != nil || len(bytes.TrimRight(text, "\r\n")) == 0 {
			return event, err
		}
	}
}

// sever cuts the connection to the client. With halfOpen it then reads the answer to its end, so that the server
// notices nothing; else the caller ends the connection to the server.
func (l *line) sever(answer *http.Response) {
	l.cut()
	if l.plan.end == halfOpen {
		_, _ = io.Copy(io.Discard, answer.Body)
	}
}

// cut cuts the connection to the client.
func (l *line) cut() {
	l.p.hit()
	if l.plan.end == rst {
		_ = l.client.SetLinger(0)
		_ = l.client.Close()
		return
	}
	_ = l.client.CloseWrite()
	_ = l.client.SetReadDeadline(time.Now().Add(time.Second)) // watch goes on to read, as bytes that the client still sends must not turn the FIN into an RST
}

// fallSilent keeps both connections, and passes nothing more, until the client leaves or the proxy ends.
func (l *line) fallSilent(answer *http.Response) {
	l.p.hit()
	_, _ = io.Copy(io.Discard, answer.Body)
	<-l.ctx.Done()
}

// sleep waits for the wait of the plan.
func (l *line) sleep() {
	select {
	case <-time.After(l.plan.wait):
	case <-l.ctx.Done():
	}
}
