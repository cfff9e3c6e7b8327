package live

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

//go:embed page.html page.js page.css
var files embed.FS

// The bounds of the page and its events.
const (
	refresh     = 250 * time.Millisecond // between two events at least, after a change
	heartbeat   = time.Second            // between two events, without a change
	writeWithin = 10 * time.Second       // after that a browser that does not read is cut off
	mostViewers = 16
	mostBody    = 4 << 10
)

// HeaderToken has the token: for an action, or for a page to get a place before pages without it.
const HeaderToken = "Holdfast-Admin-Token"

// Register adds the page to a mux, at /. It is called once.
func (l *Live) Register(mux *http.ServeMux, from Source) {
	l.source.Store(&from)
	file := func(name, kind string) http.Handler {
		return l.guard(func(w http.ResponseWriter, _ *http.Request) {
			data, _ := files.ReadFile(name)
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write(data)
		})
	}
	mux.Handle("GET /{$}", file("page.html", "text/html; charset=utf-8"))
	mux.Handle("GET /live/page.js", file("page.js", "text/javascript; charset=utf-8"))
	mux.Handle("GET /live/page.css", file("page.css", "text/css; charset=utf-8"))
	mux.Handle("GET /live/events", l.guard(l.serveEvents))
	mux.Handle("POST /live/action", l.guard(l.serveAction))
}

// policy lets a page load files of this server only.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guard refuses requests of other web pages: those with a host name that resolves to this address (DNS
// rebinding), and those of other sites.
func (l *Live) guard(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !l.knowsHost(r.Host) {
			http.Error(w, fmt.Sprintf("Host %.80q is not allowed: use an address, or allow the name with --allow-host", r.Host), http.StatusForbidden)
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && !sameHost(origin, r.Host) {
			http.Error(w, "the request comes from a page of another site", http.StatusForbidden)
			return
		}
		site := r.Header.Get("Sec-Fetch-Site")
		foreign := site != "" && site != "same-origin" && site != "none"
		if foreign && r.URL.Path != "/" { // a link may lead to the page
			http.Error(w, "the request comes from a page of another site", http.StatusForbidden)
			return
		}
		next(w, r)
	})
}

func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, host)
}

// knowsHost reports whether a Host header may be that of this server. Addresses are safe, as DNS
// rebinding needs a name.
func (l *Live) knowsHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if net.ParseIP(host) != nil || host == "localhost" {
		return true
	}
	if own, err := os.Hostname(); err == nil && host == strings.ToLower(own) {
		return true
	}
	return slices.ContainsFunc(l.opts.Hosts, func(h string) bool { return h == "*" || strings.EqualFold(h, host) })
}

// serveEvents sends the view to a page, whenever it changes, until the page is closed or loses its
// place.
func (l *Live) serveEvents(w http.ResponseWriter, r *http.Request) {
	operator := r.Header.Get(HeaderToken) != ""
	if operator && !l.admit(w, r) {
		return
	}
	place, ok := l.viewers.enter(operator)
	if !ok {
		http.Error(w, "too many pages are open: who has the token of the node gets a place", http.StatusServiceUnavailable)
		return
	}
	defer l.viewers.leave(place)
	defer l.watchOthers()()
	var held holding
	defer func() { l.keep(&held, nil, "") }()
	chosen := r.URL.Query().Get("call")
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	t := time.NewTicker(refresh)
	defer t.Stop()
	var sent time.Time
	var seen uint64
	for {
		if now := l.changed.Load() + l.news.Load(); sent.IsZero() || now != seen || time.Since(sent) >= heartbeat {
			seen, sent = now, time.Now()
			v := l.view(chosen)
			l.keep(&held, v.parts, v.Node)
			if send(w, out, "data: %s\n\n", &v) != nil {
				return
			}
		}
		select {
		case <-t.C:
		case <-r.Context().Done():
			return
		case <-place.gone:
			return
		case <-l.closed:
			return
		}
	}
}

// holding has the places on other nodes of the call that a page shows the life of.
type holding []place

// keep holds the lives of the calls at parts that are on other nodes, and releases those held before
// that are not among them.
func (l *Live) keep(held *holding, parts []place, self string) {
	for _, p := range *held {
		if !slices.Contains(parts, p) {
			l.release(p)
		}
	}
	for _, p := range parts {
		if p.node != self && !slices.Contains(*held, p) {
			l.hold(p)
		}
	}
	*held = slices.DeleteFunc(slices.Clone(parts), func(p place) bool { return p.node == self })
}

// send sends a value as JSON, in a format. It replaces the server's write timeout by writeWithin.
func send(w http.ResponseWriter, out *http.ResponseController, format string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := out.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := fmt.Fprintf(w, format, data); err != nil {
		return err
	}
	return out.Flush()
}
