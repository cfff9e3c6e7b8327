package jetstream

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	defaultPrefix = "holdfast"
	defaultMax    = 10 << 30
	leastMax      = 16 << 20
)

// An address is a parsed URL.
type address struct {
	dir string // of an engine in this process; "": a cluster

	servers   []string // of a cluster: URLs without user and password
	user      *url.Userinfo
	creds     string // files
	ca        string
	cert, key string

	prefix   string
	replicas int           // 0: not said
	max      int64         // bytes; 0: not said
	sync     time.Duration // how long acknowledged messages may be in memory only; 0: not at all
}

// parse reads a URL. Its errors do not quote parts that may hold a password.
func parse(raw string) (address, error) {
	scheme, rest, _ := strings.Cut(raw, ":")
	rest, query, _ := strings.Cut(rest, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return address{}, errors.New("the URL's query cannot be read")
	}
	a := address{prefix: defaultPrefix, sync: defaultSync}
	known := "max sync"
	if scheme == "file" {
		err = a.parseDir(rest)
	} else {
		known = "max replicas prefix creds ca cert key"
		err = a.parseServers(scheme, rest)
	}
	if err != nil {
		return address{}, err
	}
	for name := range q {
		if !slices.Contains(strings.Fields(known), name) {
			return address{}, fmt.Errorf("the URL's query has what is not known for %s: want one of %s", scheme+":", known)
		}
	}
	return a, a.parseQuery(q)
}

func (a *address) parseDir(rest string) error {
	if host, ok := strings.CutPrefix(rest, "//"); ok {
		if !strings.HasPrefix(host, "/") {
			return errors.New("want file:DIR, or file:///DIR: another host's files are not within reach")
		}
		rest = host
	}
	if rest == "" {
		return errors.New("want file:DIR")
	}
	a.dir = rest
	return nil
}

// parseServers reads //USER:PASS@H1:PORT,H2,H3. A user and password given once are
// for all servers.
func (a *address) parseServers(scheme, rest string) error {
	hosts, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return fmt.Errorf("want %s://HOST", scheme)
	}
	hosts = strings.TrimSuffix(hosts, "/")
	for host := range strings.SplitSeq(hosts, ",") {
		host = strings.TrimPrefix(strings.TrimSpace(host), scheme+"://")
		u, err := url.Parse(scheme + "://" + host)
		if err != nil || u.Hostname() == "" || u.Path != "" || u.Fragment != "" {
			return fmt.Errorf("want %s://USER:PASS@HOST:PORT,HOST:PORT, with %%-escapes for special characters in the password", scheme)
		}
		if u.User != nil {
			if a.user != nil && a.user.String() != u.User.String() {
				return errors.New("the servers of one cluster have one user and password")
			}
			a.user = u.User
		}
		u.User = nil
		a.servers = append(a.servers, u.String())
	}
	return nil
}

func (a *address) parseQuery(q url.Values) error {
	a.creds, a.ca, a.cert, a.key = q.Get("creds"), q.Get("ca"), q.Get("cert"), q.Get("key")
	if (a.cert == "") != (a.key == "") {
		return errors.New("cert= and key= belong together")
	}
	if s := q.Get("prefix"); s != "" {
		if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" || len(s) > 100 {
			return fmt.Errorf("prefix=%s: want letters, digits, - and _", s)
		}
		a.prefix = s
	}
	if s := q.Get("replicas"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 5 {
			return fmt.Errorf("replicas=%s: want 1 to 5", s)
		}
		a.replicas = n
	}
	if s := q.Get("max"); s != "" {
		n, err := parseSize(s)
		if err != nil || n < leastMax {
			return fmt.Errorf("max=%s: want a size of at least 16MiB, like 10GiB", s)
		}
		a.max = n
	}
	switch s := q.Get("sync"); s {
	case "":
	case "always":
		a.sync = 0
	default:
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			return fmt.Errorf("sync=%s: want always, or a time like 10s", s)
		}
		a.sync = d
	}
	return nil
}

// parseSize reads a size in bytes.
func parseSize(s string) (int64, error) {
	unit := strings.TrimLeft(s, "0123456789.")
	n, err := strconv.ParseFloat(strings.TrimSuffix(s, unit), 64)
	if err != nil {
		return 0, err
	}
	switch strings.ToLower(strings.TrimSpace(unit)) {
	case "", "b":
	case "kib", "k":
		n *= 1 << 10
	case "mib", "m":
		n *= 1 << 20
	case "gib", "g":
		n *= 1 << 30
	case "tib", "t":
		n *= 1 << 40
	case "kb":
		n *= 1e3
	case "mb":
		n *= 1e6
	case "gb":
		n *= 1e9
	case "tb":
		n *= 1e12
	default:
		return 0, fmt.Errorf("unit %q", unit)
	}
	if n > 1<<60 {
		return 0, errors.New("too large")
	}
	return int64(n), nil
}
