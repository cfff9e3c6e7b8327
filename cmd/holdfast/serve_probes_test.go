package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// A web page with a name that leads to a loopback address cannot read the probes and the figures. Kubernetes and
// Prometheus can, which know a node by any of its addresses.
func TestProbesHost(t *testing.T) {
	t.Parallel()
	ask := func(addr, host, path string) int {
		t.Helper()
		c := mcptest.Must(net.Dial("tcp", addr))(t)
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		version := "1.1"
		if host == "" {
			version = "1.0"
		} else {
			host = "Host: " + host + "\r\nConnection: close\r\n"
		}
		mcptest.Must(fmt.Fprintf(c, "GET %s HTTP/%s\r\n%s\r\n", path, version, host))(t)
		answer, err := io.ReadAll(c)
		var status int
		if _, scan := fmt.Sscanf(string(answer), "HTTP/1.%d %d", new(int), &status); err != nil || scan != nil {
			t.Fatalf("%s of %s: %q, %v", path, host, answer, err)
		}
		if status == http.StatusForbidden && (!strings.Contains(string(answer), "--allow-host") || strings.Contains(string(answer), "go_goroutines")) {
			t.Errorf("%s of %s: %s", path, host, answer)
		}
		return status
	}
	for _, listen := range []string{"127.0.0.1:0", ":0"} {
		a := mcptest.Must(listenAdmin(listen, false, []string{"proxy.example"}))(t)
		a.serveMetrics()
		a.watch(func() error { return nil })
		_, port, _ := net.SplitHostPort(a.addr)
		for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
			for host, passes := range map[string]bool{
				"localhost": true, "localhost:" + port: true, "127.0.0.1:" + port: true, "[::1]:" + port: true, "app.localhost": true, "": true,
				"proxy.example": true, "Proxy.example:" + port: true,
				"evil.example": false, "evil.example:" + port: false, "localhost.evil.example": false, "10.1.2.3": false,
			} {
				if got := ask("127.0.0.1:"+port, host, path); (got == http.StatusOK) != passes || !passes && got != http.StatusForbidden {
					t.Errorf("--admin %s, Host %q, %s: %d; passes: %v", listen, host, path, got, passes)
				}
			}
			for _, ip := range otherAddresses(t) {
				if listen != ":0" {
					break
				}
				for _, host := range []string{net.JoinHostPort(ip, port), "10.1.2.3:9090", "holdfast.svc.cluster.local", ""} {
					if got := ask(net.JoinHostPort(ip, port), host, path); got != http.StatusOK {
						t.Errorf("at %s, Host %q, %s: %d", ip, host, path, got)
					}
				}
			}
		}
		if err := a.close(); err != nil {
			t.Error(err)
		}
	}
}

// otherAddresses returns the IPv4 addresses of this machine that are not loopback ones.
func otherAddresses(t *testing.T) (ips []string) {
	all := mcptest.Must(net.InterfaceAddrs())(t)
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			ips = append(ips, n.IP.String())
		}
	}
	if len(ips) == 0 {
		t.Log("this machine has no other address than loopback ones")
	}
	return ips
}
