package live

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"holdfast/internal/observe"
)

// Actions are the actions that an operator may take on the page. A nil one is not offered.
type Actions struct {
	// Cancel cancels a call, by the id of its request.
	Cancel func(session, server, principal, id string) error
	// Cut ends the connection that reads the stream of a call, so that its client connects again.
	Cut func(session, server, principal string, number uint64) error
	// End ends a session.
	End func(session, server, principal string) error
	// Drain makes the node hand over its work and end.
	Drain func()
}

// An action is a request for one of the Actions.
type action struct {
	Action  string `json:"action"`
	Node    string `json:"node,omitempty"` // "": this one
	Call    string `json:"call,omitempty"` // place.uid of the call, on the node
	Session string `json:"session,omitempty"`
	From    string `json:"from,omitempty"` // the operator's address, for the log of another node
}

var (
	errGone    = errors.New("it is not here any more")
	errUnknown = errors.New("there is no such action")
	errAway    = errors.New("the node does not answer: it is not known whether it was done")
)

// readAction reads an action. If the body is not one, it answers the request.
func readAction(w http.ResponseWriter, r *http.Request) (a action, ok bool) {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody)).Decode(&a)
	if err != nil {
		http.Error(w, "the body is no action", http.StatusBadRequest)
	}
	return a, err == nil
}

// serveAction does an action for an operator who has the token.
func (l *Live) serveAction(w http.ResponseWriter, r *http.Request) {
	if !l.admit(w, r) {
		return
	}
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); kind != "application/json" {
		http.Error(w, "want application/json", http.StatusUnsupportedMediaType)
		return
	}
	a, ok := readAction(w, r)
	if !ok {
		return
	}
	if err := l.order(r, a); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// order makes the node of an action do it, and logs the action with the operator's address.
func (l *Live) order(r *http.Request, a action) error {
	from := addressOf(r)
	a.From = from
	session, err := l.orderFrom(r, &a)
	l.opts.Happened(observe.PageActed{Action: a.kind(), Done: err == nil})
	l.logAction("an operator has acted on the live page", &a, session, from, err)
	return err
}

// logAction logs an action of an operator.
func (l *Live) logAction(text string, a *action, session, from string, err error) {
	attrs := []any{"action", a.kind(), "address", from}
	for _, one := range [][2]string{{"session", session}, {"node", a.Node}, {"call", a.Call}} {
		if one[1] != "" {
			attrs = append(attrs, one[0], shortened(one[1]))
		}
	}
	level := slog.LevelInfo
	if err != nil {
		level, attrs = slog.LevelWarn, append(attrs, "error", err)
	}
	l.opts.Logger.Log(context.Background(), level, text, attrs...)
}

// kind returns the action's name, or "unknown".
func (a *action) kind() string {
	switch a.Action {
	case "cancel", "cut", "end", "drain":
		return a.Action
	}
	return "unknown"
}

func (l *Live) orderFrom(r *http.Request, a *action) (session string, err error) {
	self, from := "", l.from()
	if from.Nodes != nil {
		self, _ = from.Nodes()
	}
	if at, ok := parsePlace(a.Call, self); ok {
		a.Node, a.Call = at.node, place{id: at.id}.uid()
	}
	if a.Node == "" || a.Node == self {
		return l.act(*a)
	}
	l.others.mu.Lock()
	n := l.others.nodes[a.Node]
	known := n != nil && n.state < NodeLost
	l.others.mu.Unlock()
	if !known {
		return a.Session, errGone
	}
	return a.Session, l.askAction(r.Context(), a.Node, *a)
}

// act does an action on this node. It returns the name of the session that the action is about.
func (l *Live) act(a action) (session string, err error) {
	do := l.from().Actions
	switch {
	case a.Action == "cancel" && do.Cancel != nil:
		c := l.callOf(a.Call)
		if c == nil {
			return a.Session, errGone
		}
		return c.Session, do.Cancel(c.Session, c.Server, c.Principal, c.ID)
	case a.Action == "cut" && do.Cut != nil:
		c := l.callOf(a.Call)
		if c == nil || c.Number() == 0 {
			return a.Session, errGone
		}
		return c.Session, do.Cut(c.Session, c.Server, c.Principal, c.Number())
	case a.Action == "end" && do.End != nil:
		l.mu.Lock()
		s := l.sessions[a.Session]
		l.mu.Unlock()
		if s == nil {
			return a.Session, errGone
		}
		return s.Name, do.End(s.Name, s.Server, s.Principal)
	case a.Action == "drain" && do.Drain != nil:
		do.Drain()
		return "", nil
	}
	return "", errUnknown
}

// callOf returns a call of this node that is in flight, or nil.
func (l *Live) callOf(name string) *observe.Call {
	at, ok := parsePlace(name, "")
	if !ok {
		return nil
	}
	r := l.record(at.id)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil
	}
	return r.call
}
