package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/engine/driver"
)

// check returns an error if Redis cannot be reached, is too old, or evicts keys. It
// warns of settings that lose data.
func (l *Log) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*l.attempt)
	defer cancel()
	if l.cluster == nil {
		return l.checkServer(ctx, l.client.(*redis.Client))
	}
	masters, err := l.masters(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	for _, master := range masters {
		if err := l.checkServer(ctx, master); err != nil {
			return fmt.Errorf("server %s: %w", master.Options().Addr, err)
		}
	}
	return nil
}

// masters returns the connections to all masters.
func (l *Log) masters(ctx context.Context) ([]*redis.Client, error) {
	if l.cluster == nil {
		return []*redis.Client{l.client.(*redis.Client)}, nil
	}
	var (
		mu  sync.Mutex
		all []*redis.Client
	)
	err := l.cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, master)
		return nil
	})
	return all, err
}

func (l *Log) checkServer(ctx context.Context, server *redis.Client) error {
	if err := server.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	text, err := server.Info(ctx).Result()
	if redis.HasErrorPrefix(err, "NOPERM") {
		l.logger.Warn("redis: INFO is forbidden: see that maxmemory-policy is noeviction and appendonly is yes")
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask for its state: %w", err)
	}
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return l.judge(info)
}

// judge returns an error if a server with this INFO cannot be used.
func (l *Log) judge(info map[string]string) error {
	oldest := [2]int{6, 2}
	if l.cluster != nil {
		oldest = [2]int{7, 0} // sharded pub/sub
	}
	if v := info["redis_version"]; !atLeast(v, oldest) {
		return driver.Errorf(driver.ErrIncompatible, "it is version %q: want %d.%d or newer", v, oldest[0], oldest[1])
	}
	if info["role"] == "slave" {
		return driver.Errorf(driver.ErrIncompatible, "it is a replica, which takes no writes: name its master, or the Sentinels")
	}
	switch policy := info["maxmemory_policy"]; policy {
	case "noeviction":
	case "":
		l.logger.Warn("redis: maxmemory-policy is not known: see that it is noeviction")
	default:
		return driver.Errorf(driver.ErrIncompatible, "its maxmemory-policy is %s, so that it forgets what was acknowledged when it is full: "+
			"run CONFIG SET maxmemory-policy noeviction, and write it into redis.conf", policy)
	}
	if info["aof_enabled"] == "0" {
		l.logger.Warn("redis: appendonly is no: when the server ends, calls since its last snapshot are lost")
	}
	if n, err := strconv.Atoi(info["connected_slaves"]); err == nil && n < l.replicas {
		l.logger.Warn("redis: there are fewer replicas than writes wait for: all writes will fail", "replicas", n, "wait", l.replicas)
	}
	return nil
}

// atLeast reports whether a version such as 7.0.15 is oldest or newer.
func atLeast(version string, oldest [2]int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (major > oldest[0] || major == oldest[0] && minor >= oldest[1])
}
