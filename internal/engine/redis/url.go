package redis

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A target is a parsed URL. One of the three kinds of options is set.
type target struct {
	single   *redis.Options
	failover *redis.FailoverOptions
	cluster  *redis.ClusterOptions
	db       int
	prefix   string
	replicas int
}

// parse reads a URL. go-redis parses the options, but never gets the user and the
// password, as its errors quote text that it cannot parse.
func parse(rawURL string) (target, error) {
	t := target{}
	scheme, rest, ok := strings.Cut(rawURL, "://")
	authority, rest := rest, ""
	if i := strings.IndexAny(authority, "/?#"); i >= 0 {
		authority, rest = authority[:i], authority[i:]
	}
	if strings.ContainsAny(rest, "@#") {
		return t, errors.New("the characters @ / ? # : in a user or password are written %40 %2F %3F %23 %3A")
	}
	path, rawQuery, _ := strings.Cut(rest, "?")
	query, err := url.ParseQuery(rawQuery)
	if !ok || err != nil {
		return t, errors.New("not a URL: want redis://USER:PASS@HOST:PORT/DB")
	}
	user, password, hosts, err := splitAuthority(authority, scheme)
	if err != nil {
		return t, err
	}
	if err := t.ours(query); err != nil {
		return t, err
	}
	if path = strings.Trim(path, "/"); strings.Trim(path, "0123456789") != "" {
		return t, errors.New("want the number of a database, or nothing, after HOST:PORT/")
	}
	u := url.URL{Scheme: scheme, Host: hosts[0], Path: "/" + path}
	if scheme != "redis" && scheme != "rediss" {
		u.Scheme = "redis"
		if tls, _ := strconv.ParseBool(query.Get("tls")); tls {
			u.Scheme = "rediss"
		}
		query.Del("tls")
		query["addr"] = hosts[1:]
	} else if len(hosts) > 1 {
		return t, errors.New("several hosts: want redis+sentinel:// or redis+cluster://")
	}
	switch scheme {
	case "redis", "rediss":
		u.RawQuery = query.Encode()
		t.single, err = single(u.String(), user, password)
	case "redis+sentinel":
		t.failover, err = failover(u, query, user, password)
	case "redis+cluster":
		u.RawQuery = query.Encode()
		if strings.Trim(path, "0") != "" {
			return t, errors.New("a Redis Cluster has no databases but 0")
		}
		t.cluster, err = clustered(u.String(), user, password)
	default:
		return t, fmt.Errorf("no such scheme: %q", scheme)
	}
	switch {
	case err != nil:
		return t, err
	case t.single != nil:
		t.db = t.single.DB
	case t.failover != nil:
		t.db = t.failover.DB
	}
	return t, nil
}

// ours reads the options that are not for go-redis, and removes them from a query.
func (t *target) ours(query url.Values) error {
	t.prefix = "holdfast"
	if query.Has("prefix") {
		t.prefix = query.Get("prefix")
		const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:"
		if t.prefix == "" || strings.Trim(t.prefix, allowed) != "" {
			return errors.New("prefix: want only letters, digits and any of -_.:, not nothing")
		}
	}
	if query.Has("wait") {
		n, err := strconv.Atoi(query.Get("wait"))
		if err != nil || n < 0 || n > 100 {
			return errors.New("wait: want the number of replicas that acknowledge each write")
		}
		t.replicas = n
	}
	query.Del("prefix")
	query.Del("wait")
	return nil
}

// splitAuthority returns the user, the password and the hosts with their ports.
func splitAuthority(authority, scheme string) (user, password string, hosts []string, err error) {
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		user, password, _ = strings.Cut(authority[:i], ":")
		authority = authority[i+1:]
		var err1, err2 error
		user, err1 = url.PathUnescape(user)
		password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return "", "", nil, errors.New("the user or the password has a % that is not %XX")
		}
	}
	port := "6379"
	if scheme == "redis+sentinel" {
		port = "26379"
	}
	for host := range strings.SplitSeq(authority, ",") {
		name, p, err := net.SplitHostPort(host)
		if err != nil {
			name, p = strings.Trim(host, "[]"), port
		}
		if _, err := strconv.ParseUint(p, 10, 16); err != nil || name == "" || strings.ContainsAny(name, " %[]") {
			return "", "", nil, errors.New("want HOST:PORT after // or @")
		}
		hosts = append(hosts, net.JoinHostPort(name, p))
	}
	return user, password, hosts, nil
}

func single(u, user, password string) (*redis.Options, error) {
	o, err := redis.ParseURL(u)
	if err != nil {
		return nil, err
	}
	o.Username, o.Password = user, password
	o.MaxRetries = -1 // callers find out the outcome of a write, and repeat it
	o.ContextTimeoutEnabled = true
	o.DialTimeout, o.DialerRetries = bounded(o.DialTimeout), 1
	o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = bounded(o.ReadTimeout), bounded(o.WriteTimeout), bounded(o.PoolTimeout)
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.ClientName, o.DisableIdentity = named(o.ClientName), true
	return o, nil
}

func failover(u url.URL, query url.Values, user, password string) (*redis.FailoverOptions, error) {
	sentinelUser, sentinelPassword := query.Get("sentinel_username"), query.Get("sentinel_password")
	if query.Get("master") == "" {
		return nil, errors.New("want ?master=NAME, the name under which the Sentinels know the master")
	}
	query.Set("master_name", query.Get("master"))
	for _, name := range []string{"master", "sentinel_username", "sentinel_password"} {
		query.Del(name)
	}
	for _, name := range []string{"replica_only", "route_by_latency", "route_randomly", "username", "password"} {
		if query.Has(name) {
			return nil, fmt.Errorf("the option %s can't be used", name)
		}
	}
	u.RawQuery = query.Encode()
	o, err := redis.ParseFailoverURL(u.String())
	if err != nil {
		return nil, err
	}
	o.Username, o.Password = user, password
	o.SentinelUsername, o.SentinelPassword = sentinelUser, sentinelPassword
	o.MaxRetries = -1
	o.ContextTimeoutEnabled = true
	o.DialTimeout, o.DialerRetries = bounded(o.DialTimeout), 1
	o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = bounded(o.ReadTimeout), bounded(o.WriteTimeout), bounded(o.PoolTimeout)
	o.ClientName, o.DisableIdentity = named(o.ClientName), true
	return o, nil
}

func clustered(u, user, password string) (*redis.ClusterOptions, error) {
	o, err := redis.ParseClusterURL(u)
	if err != nil {
		return nil, err
	}
	if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
		return nil, errors.New("reads have to go to masters")
	}
	o.Username, o.Password = user, password
	o.MaxRetries = -1
	o.ContextTimeoutEnabled = true
	o.DialTimeout, o.DialerRetries = bounded(o.DialTimeout), 1
	o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = bounded(o.ReadTimeout), bounded(o.WriteTimeout), bounded(o.PoolTimeout)
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.ClientName, o.DisableIdentity = named(o.ClientName), true
	return o, nil
}

// bounded returns the time-out d, but at most attemptTime.
func bounded(d time.Duration) time.Duration {
	if d <= 0 || d > attemptTime {
		return attemptTime
	}
	return d
}

func named(name string) string {
	if name == "" {
		return "holdfast"
	}
	return name
}
