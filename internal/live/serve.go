package live

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// The bounds of answers to other nodes.
const (
	newsBeat     = 500 * time.Millisecond // between two lines, without a change
	mostRequests = 128                    // requests of other nodes at a time
)

// Peers returns the handler of requests from the pages of other nodes. Those have checked the operator's
// token: no other client may reach the handler.
//
//	GET  /news          the state of this node, and then its changes: a line of JSON each
//	GET  /life?call=1   the life of a call, as often as it changes
//	POST /action        an action of an operator
func (l *Live) Peers() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathNews, l.serveNews)
	mux.HandleFunc("GET "+pathLife, l.serveLife)
	mux.HandleFunc("POST "+pathAction, l.actForNode)
	return mux
}

// stream sends a line whenever something has changed on this node, until the node that asks is gone.
// next returns the value of the line, or nil for no line.
func (l *Live) stream(w http.ResponseWriter, r *http.Request, next func() any) {
	if l.requests.Add(1) > mostRequests {
		l.requests.Add(-1)
		http.Error(w, "too many nodes ask", http.StatusServiceUnavailable)
		return
	}
	defer l.requests.Add(-1)
	out := http.NewResponseController(w)
	t := time.NewTicker(refresh)
	defer t.Stop()
	var sent time.Time
	var seen uint64
	for {
		if now := l.changed.Load(); sent.IsZero() || now != seen || time.Since(sent) >= newsBeat {
			seen = now
			if v := next(); v != nil {
				sent = time.Now()
				if send(w, out, "%s\n", v) != nil {
					return
				}
			}
		}
		select {
		case <-t.C:
		case <-r.Context().Done():
			return
		case <-l.closed:
			return
		}
	}
}

// serveNews sends the news of this node to another.
func (l *Live) serveNews(w http.ResponseWriter, r *http.Request) {
	calls, sessions := make(map[uint64]callView), make(map[string]sessionView)
	l.stream(w, r, func() any {
		return new(news).since(l.snapshot(), calls, sessions)
	})
}

// since sets n to the changes between the calls and sessions told before and a snapshot, and updates
// these maps.
func (n *news) since(s snapshot, calls map[uint64]callView, sessions map[string]sessionView) *news {
	n.snapshot = s
	n.Calls, n.GoneCalls = changed(s.Calls, calls, func(c *callView) uint64 { return c.ID }, n.GoneCalls)
	n.Sessions, n.GoneSessions = changed(s.Sessions, sessions, func(one *sessionView) string { return one.Name }, n.GoneSessions)
	return n
}

// changed returns the elements of all that differ from those told before, and appends to gone the names
// of those that are not in all any more. It updates told.
func changed[K, V comparable](all []V, told map[K]V, name func(*V) K, gone []K) (news []V, _ []K) {
	now := make(map[K]bool, len(all))
	for i := range all {
		v := &all[i]
		key := name(v)
		now[key] = true
		if was, ok := told[key]; !ok || was != *v {
			told[key] = *v
			news = append(news, *v)
		}
	}
	for key := range told {
		if !now[key] {
			delete(told, key)
			gone = append(gone, key)
		}
	}
	return news, gone
}

// serveLife sends the life of one call to another node.
func (l *Live) serveLife(w http.ResponseWriter, r *http.Request) {
	id, _ := strconv.ParseUint(r.URL.Query().Get("call"), 10, 64)
	if l.record(id) == nil {
		http.Error(w, errGone.Error(), http.StatusNotFound)
		return
	}
	var last string
	l.stream(w, r, func() any {
		life := l.life(id)
		if life == nil {
			return nil
		}
		data, err := json.Marshal(life)
		if err != nil || string(data) == last {
			return nil
		}
		last = string(data)
		return json.RawMessage(data)
	})
}

// actForNode does an action of an operator at another node, which has checked the token.
func (l *Live) actForNode(w http.ResponseWriter, r *http.Request) {
	a, ok := readAction(w, r)
	if !ok {
		return
	}
	session, err := l.act(a)
	l.logAction("an operator has acted on the live page of another node", &a, session, a.From, err)
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
