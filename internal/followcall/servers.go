package followcall

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"holdfast/internal/statefile"
)

// mostServers is how many servers that the user has named are remembered.
const mostServers = 200

// OriginOf returns the origin of a server's URL: its scheme, host and port; "" if it has none. A WebSocket has
// the origin of the HTTP server at which it is opened.
func OriginOf(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host == "" {
		return ""
	}
	scheme := strings.ToLower(u.Scheme)
	switch scheme {
	case "ws":
		scheme = "http"
	case "wss":
		scheme = "https"
	}
	host := strings.ToLower(u.Host)
	if port := map[string]string{"http": ":80", "https": ":443"}[scheme]; port != "" {
		host = strings.TrimSuffix(host, port)
	}
	return scheme + "://" + host
}

func (s SavedCalls) serversFile() string { return filepath.Join(filepath.Dir(s.dir), "servers.json") }

// servers returns the origins that are remembered, the latest last.
func (s SavedCalls) servers() (all []string) {
	if s.IsZero() {
		return nil
	}
	if data, err := os.ReadFile(s.serversFile()); err == nil {
		_ = json.Unmarshal(data, &all) // else none is known
	}
	return all
}

// Knows reports whether the user has named a server of the URL's origin before.
func (s SavedCalls) Knows(rawURL string) bool {
	origin := OriginOf(rawURL)
	return origin != "" && slices.Contains(s.servers(), origin)
}

// Remember notes that the user has named a server. A server that another process notes at the same moment may
// be lost: then the user is asked.
func (s SavedCalls) Remember(rawURL string) {
	origin := OriginOf(rawURL)
	all := s.servers()
	if s.IsZero() || origin == "" || len(all) > 0 && all[len(all)-1] == origin {
		return
	}
	all = append(slices.DeleteFunc(all, func(was string) bool { return was == origin }), origin)
	data, err := json.Marshal(all[max(0, len(all)-mostServers):])
	if err != nil || os.MkdirAll(filepath.Dir(s.dir), 0o700) != nil {
		return
	}
	_ = statefile.Replace(s.serversFile(), data) // else the user is asked
}
