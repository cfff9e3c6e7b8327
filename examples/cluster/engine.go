package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"holdfast/internal/engine/jetstream/natstest"
)

// startEngine starts the engine and returns the URL of the store.
func startEngine(kind string) (url string, stop func(), err error) {
	if strings.Contains(kind, ":") {
		return kind, func() {}, nil // it is running already
	}
	dir, err := os.MkdirTemp("", "holdfast-cluster-")
	if err != nil {
		return "", nil, err
	}
	clean := func() { _ = os.RemoveAll(dir) }
	switch kind {
	case "jetstream":
		// Three servers, so that one may fail. In production they are on three machines.
		servers, err := natstest.StartProcesses(dir, 3)
		if err != nil {
			clean()
			return "", nil, err
		}
		return servers.URL(), func() { servers.Close(); clean() }, nil
	case "redis":
		url, stop, err := startRedis(dir)
		if err != nil {
			clean()
			return "", nil, err
		}
		return url, func() { stop(); clean() }, nil
	}
	clean()
	return "", nil, fmt.Errorf("-engine %s: want jetstream, redis or an engine's URL", kind)
}

// startRedis starts a redis-server that writes to its disk and never evicts keys.
func startRedis(dir string) (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr := l.Addr().String()
	_ = l.Close() // for redis-server to listen there
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", dir,
		"--appendonly", "yes", "--maxmemory-policy", "noeviction", "--save", "")
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("redis-server: %w", err)
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for range 100 {
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close()
			return "redis://" + addr + "/0", stop, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	return "", nil, fmt.Errorf("redis-server accepts no connections at %s", addr)
}
