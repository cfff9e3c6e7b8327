package merge

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// each calls do for each link at the same time, and waits for all.
func each(links []*link, do func(i int, l *link)) {
	var all sync.WaitGroup
	for i, l := range links {
		all.Go(func() { do(i, l) })
	}
	all.Wait()
}

// initializeAll opens all servers, and answers the client with what they have together. Those
// that take long are told of as a change.
func (c *conn) initializeAll(ctx context.Context, in backend.Inbound) ([]byte, *jsonrpc.Error) {
	lineup := c.lineup.Load() // the same to the end, if there is another meanwhile: its client is told of the change
	each(lineup.links, func(_ int, l *link) { l.opens(ctx, in) })
	if ctx.Err() != nil {
		return nil, nil
	}
	revision, found := "", false
	capabilities := map[string]map[string]json.RawMessage{}
	var instructions []string
	for i, l := range lineup.links {
		l.mu.Lock()
		result := l.result
		l.mu.Unlock()
		if result == nil {
			continue
		}
		found = true
		if v := jsonrpc.String(jsonrpc.Field(result, "protocolVersion")); revision == "" || v < revision { // they are dates
			revision = v
		}
		addCapabilities(capabilities, jsonrpc.Field(result, "capabilities"))
		if text := jsonrpc.String(jsonrpc.Field(result, "instructions")); text != "" {
			instructions = append(instructions, fmt.Sprintf("# %s (%s)\n\n%s", l.name, lineup.members[i].Prefix, text))
		}
	}
	if !found {
		return nil, jsonrpc.Errorf(jsonrpc.CodeServer, "none of the servers could be opened: see the log")
	}
	result, err := json.Marshal(struct {
		Revision     string            `json:"protocolVersion"`
		Capabilities any               `json:"capabilities"`
		Info         map[string]string `json:"serverInfo"`
		Instructions string            `json:"instructions,omitempty"`
	}{revision, capabilities, map[string]string{"name": "holdfast", "version": "1"}, strings.Join(instructions, "\n\n")})
	if err != nil {
		return nil, jsonrpc.Errorf(jsonrpc.CodeInternal, "merge the capabilities of the servers: %v", err)
	}
	return result, nil
}

// merged are the capabilities that several servers can have as one.
var merged = []string{"tools", "prompts", "resources", "completions", "logging"}

// addCapabilities adds those of a server. Lists may change, as a server may come back.
func addCapabilities(all map[string]map[string]json.RawMessage, of []byte) {
	jsonrpc.Each(of, func(name, value []byte) {
		if !slices.Contains(merged, string(name)) {
			return
		}
		has := all[string(name)]
		if has == nil {
			has = map[string]json.RawMessage{}
			all[string(name)] = has
		}
		jsonrpc.Each(value, func(sub, value []byte) {
			if string(value) != "false" {
				has[string(sub)] = slices.Clone(value)
			}
		})
		switch string(name) {
		case "tools", "prompts", "resources":
			has["listChanged"] = json.RawMessage("true")
		}
	})
}

// opens has a server opened, and waits for that, but not for long. It reports whether it is open.
func (l *link) opens(ctx context.Context, in backend.Inbound) bool {
	l.mu.Lock()
	if l.state == linkOpen {
		l.mu.Unlock()
		return true
	}
	l.open(in)
	ready := l.ready
	l.mu.Unlock()
	if ready == nil { // the conversation ends
		return false
	}
	wait := time.NewTimer(l.c.b.waitFor(l.name))
	defer wait.Stop()
	select {
	case <-ready:
	case <-wait.C:
		l.isLate(ready)
	case <-ctx.Done():
	}
	return l.isReady()
}

// isReady reports whether the server is open.
func (l *link) isReady() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == linkOpen
}

// tellLater tells the client of a server that takes longer to open than it waits, once for an opening.
func (l *link) tellLater(ready chan struct{}) {
	l.mu.Lock()
	told := l.told == ready
	l.told = ready
	l.mu.Unlock()
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	if told || l.c.closed {
		return
	}
	l.c.work.Go(func() {
		select {
		case <-ready:
			if l.isReady() {
				l.c.tellChanged()
			}
		case <-l.c.ctx.Done():
		}
	})
}

// A listing is how results of a list method are merged.
type listing struct {
	capability string
	member     string // of the result
	key        string // of an item: what it is found by
	named      bool   // items have the server's prefix
}

var listings = map[string]listing{
	"tools/list":               {"tools", "tools", "name", true},
	"prompts/list":             {"prompts", "prompts", "name", true},
	"resources/list":           {"resources", "resources", "uri", false},
	"resources/templates/list": {"resources", "resourceTemplates", "uriTemplate", false},
}

// list answers a list request with a page of each server that has another. A cursor has the
// cursors of those servers, by their names.
func (c *conn) list(ctx context.Context, in backend.Inbound) ([]byte, *jsonrpc.Error) {
	what := listings[in.Method]
	cursors, ok := parseCursor(jsonrpc.Field(in.Params, "cursor"))
	if !ok {
		return nil, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "the cursor is not one of this list")
	}
	ctx, cancel := context.WithTimeout(ctx, initWait) // a server that hangs is left out
	defer cancel()
	lineup := c.lineup.Load()
	pages := make([][]byte, len(lineup.links))
	each(lineup.links, func(i int, l *link) {
		cursor, wanted := cursors[l.name]
		if cursors != nil && !wanted || !l.offers(what.capability) {
			return
		}
		if !l.opens(ctx, in) {
			c.log.Warn("server left out of a merged list", "server", l.name, "method", in.Method, "error", "it is not open")
			return
		}
		if !l.offers(what.capability) {
			return
		}
		params := in.Params
		if wanted {
			params, _ = jsonrpc.Set(params, jsonrpc.Quote(cursor), "cursor")
		}
		m, err := l.ask(ctx, in, params)
		switch {
		case err != nil:
			c.log.Warn("server left out of a merged list", "server", l.name, "method", in.Method, "error", err)
		case m.Error != nil:
			c.log.Debug("server left out of a merged list", "server", l.name, "method", in.Method, "error", string(m.Error))
		default:
			pages[i] = m.Result
		}
	})
	items := []json.RawMessage{}
	next := make(map[string]string)
	for i, page := range pages {
		if page == nil {
			continue
		}
		items = append(items, c.itemsOf(what, lineup, i, page)...)
		if cursor := jsonrpc.String(jsonrpc.Field(page, "nextCursor")); cursor != "" {
			next[lineup.links[i].name] = cursor
		}
	}
	result := map[string]any{what.member: items}
	if len(next) > 0 {
		result["nextCursor"] = cursorOf(next)
	}
	text, err := json.Marshal(result)
	if err != nil {
		return nil, jsonrpc.Errorf(jsonrpc.CodeInternal, "merge lists: %v", err)
	}
	return text, nil
}

// itemsOf returns the items on a page of a server, as clients know them.
func (c *conn) itemsOf(what listing, from *lineup, i int, page []byte) (items []json.RawMessage) {
	l, member := from.links[i], &from.members[i]
	var all []json.RawMessage
	if json.Unmarshal(jsonrpc.Field(page, what.member), &all) != nil {
		return nil
	}
	for _, item := range all {
		key := jsonrpc.String(jsonrpc.Field(item, what.key))
		if what.named {
			known := key
			if !member.Prefixed {
				known = member.Prefix + key
				item, _ = jsonrpc.Set(item, jsonrpc.Quote(known), what.key)
			}
			if to, _, ok := Route(from.members, known); !ok || to != i {
				c.log.Warn("left out of a merged list: another server has the name", "server", l.name, "name", known)
				continue
			}
			if len(known) > longName && c.b.first(l.name) {
				c.log.Warn("some hosts take no names over 64 characters, and then none of the list: set a shorter prefix, or deny the tool", "server", l.name, "name", known)
			}
		} else if !c.claim(key, l) {
			c.log.Debug("left out of a merged list: another server has it", "server", l.name, what.key, key)
			continue
		}
		items = append(items, item)
	}
	return items
}

// claim notes that a server has a resource, unless another has it.
func (c *conn) claim(uri string, l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if owner := c.ownerOf(uri); owner != nil {
		return owner == l
	}
	c.owners.put(uri, l, budget.Of(c.sink))
	return true
}

// ownerOf returns the link of the server that has a resource, or nil. c.mu is held.
func (c *conn) ownerOf(uri string) *link {
	owner := c.owners.of[uri]
	if owner != nil && !slices.Contains(c.links(), owner) {
		return nil // it was a member when it listed the resource
	}
	return owner
}

// offers reports whether a server may have a capability: it is open and says so, or it is to be
// opened, and did not just fail.
func (l *link) offers(capability string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == linkClosed && time.Since(l.failed) < againAfter {
		return false
	}
	return l.result == nil || jsonrpc.Field(l.result, "capabilities", capability) != nil
}

func parseCursor(raw []byte) (cursors map[string]string, ok bool) {
	if raw == nil {
		return nil, true
	}
	text, err := base64.RawURLEncoding.DecodeString(jsonrpc.String(raw))
	if err != nil || json.Unmarshal(text, &cursors) != nil || cursors == nil {
		return nil, false
	}
	return cursors, true
}

func cursorOf(next map[string]string) string {
	text, _ := json.Marshal(next) // strings always marshal
	return base64.RawURLEncoding.EncodeToString(text)
}

// setLevel sets the level of all servers that log.
func (c *conn) setLevel(ctx context.Context, in backend.Inbound) ([]byte, *jsonrpc.Error) {
	ctx, stop := context.WithTimeout(ctx, stateFor)
	defer stop()
	each(c.links(), func(_ int, l *link) {
		if l.isOpen() && l.offers("logging") {
			ctx := ctx
			if !l.isReady() { // it is told then, but the client does not wait for that
				short, stop := context.WithTimeout(ctx, l.c.b.waitFor(l.name))
				defer stop()
				ctx = short
			}
			_, _ = l.ask(ctx, in, in.Params) // others learn of the level when they are opened
		}
	})
	return nil, nil
}

// resource routes a request about a resource: to the server that has listed it, or else to one
// server after the other until one has it.
func (c *conn) resource(in backend.Inbound, uri string) {
	c.mu.Lock()
	owner := c.ownerOf(uri)
	c.mu.Unlock()
	if owner != nil && in.Method == protocol.MethodReadResource {
		owner.send(in, nil)
		return
	}
	c.gather(in, func(ctx context.Context, in backend.Inbound) ([]byte, *jsonrpc.Error) {
		links := c.links()
		if owner != nil {
			links = []*link{owner}
		}
		if in.Method == protocol.MethodSubscribe || in.Method == protocol.MethodUnsubscribe {
			return c.subscribeAll(ctx, in, uri, links)
		}
		return c.tryEach(ctx, in, uri, links)
	})
}

// subscribeAll subscribes to a resource, or ends that: at the server that has listed it or, if none has, at all servers,
// as some accept any URI. One that does not answer in time is told that nobody waits for it.
func (c *conn) subscribeAll(ctx context.Context, in backend.Inbound, uri string, links []*link) ([]byte, *jsonrpc.Error) {
	ctx, stop := context.WithTimeout(ctx, partFor)
	defer stop()
	refused := make([]*jsonrpc.Error, len(links))
	each(links, func(i int, l *link) {
		_, refused[i] = c.tryEach(ctx, in, uri, []*link{l})
	})
	if len(refused) > 0 && !slices.Contains(refused, nil) {
		return nil, refused[0]
	}
	for _, l := range links {
		if !l.isReady() { // it is told when it is opened
			l.noteSubscription(in.Method, uri, in.Params)
		}
	}
	return nil, nil
}

// tryEach makes a request about a resource to one server after the other, until one has it.
func (c *conn) tryEach(ctx context.Context, in backend.Inbound, uri string, links []*link) ([]byte, *jsonrpc.Error) {
	var refused *jsonrpc.Error
	for _, l := range links {
		if !l.offers("resources") {
			continue
		}
		var m jsonrpc.Message
		var err error
		if len(links) > 1 {
			m, err = l.askOneOf(ctx, in)
		} else {
			m, err = l.ask(ctx, in, in.Params)
		}
		switch {
		case err != nil:
			refused = cmp.Or(refused, jsonrpc.Errorf(jsonrpc.CodeServer, "the server %q: %v", l.name, err))
			continue
		case m.Error != nil:
			var e jsonrpc.Error
			if json.Unmarshal(m.Error, &e) == nil && (refused == nil || refused.Code == notFound || refused.Code == jsonrpc.CodeMethodNotFound) {
				refused = &e
			}
			continue
		case in.Method == "completion/complete" && len(links) > 1 && string(jsonrpc.Field(m.Result, "completion", "values")) == "[]":
			refused = cmp.Or(refused, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "no server has the resource"))
			continue
		case in.Method == protocol.MethodReadResource:
			c.claim(uri, l)
		}
		l.noteSubscription(in.Method, uri, in.Params)
		return m.Result, nil
	}
	if refused == nil {
		refused = &jsonrpc.Error{Code: notFound, Message: "no server has the resource", Data: jsonrpc.Object("uri", uri)}
	}
	return nil, refused
}

// askOneOf asks a server for what others may have, too, which are not kept waiting for ever.
func (l *link) askOneOf(ctx context.Context, in backend.Inbound) (jsonrpc.Message, error) {
	ctx, stop := context.WithTimeout(ctx, partFor)
	defer stop()
	return l.ask(ctx, in, in.Params)
}

// notFound is the code for a resource that is not there (2025-11-25, Resources, "Error Handling").
const notFound = -32002

// subscribed returns what the server has to be told when it is opened again.
func (l *link) subscribed() map[string][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.subs)
}

// noteSubscription notes what the server has to be told when it is opened again.
func (l *link) noteSubscription(method, uri string, params []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch method {
	case protocol.MethodSubscribe:
		if l.subs == nil {
			l.subs = make(map[string][]byte)
		}
		if len(l.subs) < mostSubscriptions || l.subs[uri] != nil {
			l.subs[uri] = protocol.Setting(params)
		}
	case protocol.MethodUnsubscribe:
		delete(l.subs, uri)
	}
}
