package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/engine/jetstream/natstest"
)

// An engine is an engine under measurement: through Holdfast by its URL, and bare.
type engine struct {
	name string
	url  string
	// bare returns a function that appends data to the log of a session, fenced, with the engine's
	// own client; nil: there is nothing to compare with.
	bare func(ctx context.Context, session int) (func(data []byte) error, error)
	pid  int // of the server if it is another process, else 0

	servers []int // process ids of all servers, if startShared has started them
}

// startShared starts the engines that nodes share and that have only in their name, each server in
// a process of its own.
func startShared(only string) (all []engine, stop func(), err error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	stops := []func(){func() { _ = os.RemoveAll(dir) }}
	stop = func() {
		for _, one := range slices.Backward(stops) {
			one()
		}
	}
	if err != nil {
		return nil, stop, err
	}
	if name := "redis everysec"; strings.Contains(name, only) {
		addr, pid, end, err := startRedis(filepath.Join(dir, "redis"))
		if err != nil {
			return nil, stop, err
		}
		stops = append(stops, end)
		all = append(all, engine{name: name, url: "redis://" + addr, servers: []int{pid}})
	}
	for _, n := range []int{1, 3} {
		name := fmt.Sprintf("jetstream R%d", n)
		if !strings.Contains(name, only) {
			continue
		}
		servers, err := natstest.StartProcesses(filepath.Join(dir, fmt.Sprint(n)), n)
		if err != nil {
			return nil, stop, err
		}
		stops = append(stops, servers.Close)
		all = append(all, engine{name: name, url: servers.URL(), servers: servers.PIDs()})
	}
	return all, stop, nil
}

// start starts the memory engine, and the others that have only in their name.
func start(ctx context.Context, only string) (all []engine, stop func(), err error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	stops := []func(){func() { _ = os.RemoveAll(dir) }}
	stop = func() {
		for _, one := range slices.Backward(stops) {
			one()
		}
	}
	if err != nil {
		return nil, stop, err
	}
	want := func(name string) bool { return strings.Contains(name, only) }
	all = append(all, engine{name: "memory", url: "memory:"})
	for _, query := range []string{"", "sync=always", "sync=2m"} {
		if name := strings.TrimSpace("file " + query); want(name) {
			all = append(all, engine{name: name, url: "file:" + filepath.Join(dir, "file"+query) + "?" + query})
		}
	}
	for name, n := range map[string]int{"jetstream R1": 1, "jetstream R3": 3} {
		if !want(name) {
			continue
		}
		servers, err := natstest.Start(filepath.Join(dir, fmt.Sprint(n)), n)
		if err != nil {
			return nil, stop, err
		}
		stops = append(stops, servers.Close)
		bare, end, err := bareJetStream(ctx, servers.URL(), n)
		if err != nil {
			return nil, stop, err
		}
		stops = append(stops, end)
		all = append(all, engine{name: name, url: servers.URL(), bare: bare})
	}
	if _, err := exec.LookPath("redis-server"); err == nil && want("redis everysec") {
		addr, pid, end, err := startRedis(filepath.Join(dir, "redis"))
		if err != nil {
			return nil, stop, err
		}
		stops = append(stops, end)
		bare, end := bareRedis(addr)
		stops = append(stops, end)
		all = append(all, engine{name: "redis everysec", url: "redis://" + addr, bare: bare, pid: pid})
	}
	return all, stop, nil
}

// inFlight is JetStream's code for a message that it has refused because another check of its
// subject was under way.
const inFlight = 10164

// bareJetStream returns an engine.bare that uses nats.go alone, and appends each message after the
// last one of its subject.
func bareJetStream(ctx context.Context, url string, replicas int) (func(context.Context, int) (func([]byte) error, error), func(), error) {
	nc, err := nats.Connect(url, nats.UserInfo(natstest.User, natstest.Password))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, nil, err
	}
	for try := 0; ; try++ { // a cluster that has just begun has no leader yet
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: "BARE", Subjects: []string{"bare.>"}, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew,
			MaxAge: 15 * time.Minute, MaxBytes: 8 << 30, Replicas: replicas,
		})
		if err == nil {
			break
		}
		if try == 50 {
			return nil, nil, fmt.Errorf("bare stream: %w", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	round := 0
	return func(ctx context.Context, session int) (func([]byte) error, error) {
		if session == 0 {
			round++
		}
		subject := fmt.Sprintf("bare.%d.%d", round, session)
		last := uint64(0)
		return func(data []byte) error {
			for {
				ack, err := js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: data}, jetstream.WithExpectLastSequencePerSubject(last))
				if api, ok := errors.AsType[*jetstream.APIError](err); ok && api.ErrorCode == inFlight {
					time.Sleep(time.Millisecond) // as Holdfast does
					continue
				}
				if err == nil {
					last = ack.Sequence
				}
				return err
			}
		}, nil
	}, nc.Close, nil
}

// fencedAdd is the shortest script for a fenced append in Redis.
var fencedAdd = redis.NewScript(`
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if (last[1] and last[1][1] or '0-0') ~= ARGV[1] then return redis.error_reply('FENCED') end
local at = redis.call('XADD', KEYS[1], ARGV[2], 'f', ARGV[3])
redis.call('PEXPIRE', KEYS[1], 900000)
return at`)

func bareRedis(addr string) (func(context.Context, int) (func([]byte) error, error), func()) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 256})
	round := 0
	return func(ctx context.Context, session int) (func([]byte) error, error) {
		if session == 0 {
			round++
		}
		key := fmt.Sprintf("bare:%d:%d", round, session)
		n := 0
		return func(data []byte) error {
			err := fencedAdd.Run(ctx, rdb, []string{key}, fmt.Sprintf("%d-0", n), fmt.Sprintf("%d-0", n+1), data).Err()
			n++
			return err
		}, nil
	}, func() { _ = rdb.Close() }
}

// startRedis runs a Redis server that syncs its file every second.
func startRedis(dir string) (addr string, pid int, stop func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", 0, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", 0, nil, err
	}
	addr = l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	_ = l.Close()
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--appendonly", "yes",
		"--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction")
	if err := cmd.Start(); err != nil {
		return "", 0, nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for range 100 {
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close()
			return addr, cmd.Process.Pid, stop, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	return "", 0, nil, fmt.Errorf("redis-server does not answer on %s", addr)
}
