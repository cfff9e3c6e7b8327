package main

import (
	"context"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"
)

// balancer returns a load balancer that sends each request to the next node, without sticky
// sessions. It skips a node that refuses its connection.
func balancer(nodes func() []string) http.Handler {
	var next atomic.Uint64
	transport := &http.Transport{
		DisableKeepAlives: true, // otherwise requests would stay with one node
		DialContext: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
			var d net.Dialer
			addrs := nodes()
			first := next.Add(1)
			for i := range addrs {
				c, err = d.DialContext(ctx, "tcp", addrs[(first+uint64(i))%uint64(len(addrs))])
				if err == nil {
					break
				}
			}
			return c, err
		},
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "127.0.0.1"})
			r.Out.Host = "127.0.0.1" // a node on loopback accepts only loopback names
		},
		Transport:     transport,
		FlushInterval: -1, // events are not delayed
		ErrorLog:      log.New(discard{}, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A node may answer before the proxy has read the end of the request. By default net/http closes the request's body
		// then, and the proxy cuts the answer.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	})
}

// discard discards the log of the proxy, which reports nodes that were killed.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// A listener serves a handler on a port of this machine.
type listener struct {
	url    string
	server *http.Server
}

func serve(h http.Handler) (*listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(discard{}, "", 0)}
	go func() { _ = s.Serve(l) }() // until it is closed
	return &listener{"http://" + l.Addr().String(), s}, nil
}

func (l *listener) close() { _ = l.server.Close() }
