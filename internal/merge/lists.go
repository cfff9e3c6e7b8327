package merge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// A listing says how results of a list method are merged.
type listing struct {
	capability string
	member     string // of the result
	key        string // of an item: the member that it is found by
	named      bool   // items have the server's prefix
}

var listings = map[string]listing{
	"tools/list":               {"tools", "tools", "name", true},
	"prompts/list":             {"prompts", "prompts", "name", true},
	"resources/list":           {"resources", "resources", "uri", false},
	"resources/templates/list": {"resources", "resourceTemplates", "uriTemplate", false},
}

// list answers a list request with the next page of each server that has one. A cursor has the cursors of those
// servers, by their names. The part of a server that fails is left out, but a list without any part is an error.
func (c *conn) list(ctx context.Context, in backend.Inbound) ([]byte, error) {
	what := listings[in.Method]
	var cursors map[string]place // nil: the first page
	first := in.Params
	switch raw := jsonrpc.Field(in.Params, "cursor"); {
	case !protocol.IsFirstPage(in.Params):
		var ok bool
		if cursors, ok = parseCursor(raw); !ok {
			return nil, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "the cursor is not one of this list")
		}
	case raw != nil:
		first = protocol.Without(first, "cursor") // null or an empty text, which some servers refuse
	}
	within, cancel := context.WithTimeout(ctx, initWait) // a server that hangs is left out
	defer cancel()
	lineup := c.lineup.Load()
	c.awaitOne(within, lineup.links)
	parts := make([]part, len(lineup.links))
	each(lineup.links, func(i int, l *link) {
		cursor, wanted := cursors[l.name]
		if cursors != nil && !wanted {
			return
		}
		params, again := first, []byte("{}")
		if wanted {
			params, _ = jsonrpc.Set(params, cursor.Cursor, "cursor")
			again, _ = jsonrpc.Set(again, cursor.Cursor, "cursor")
		}
		parts[i] = l.listed(within, in, params, what)
		if err := parts[i].err; err != nil && ctx.Err() == nil {
			c.log.Log(ctx, c.b.fails(matter{l.name, in.Method}, err), "server left out of a merged list", "server", l.name, "method", in.Method, "error", err)
			l.miss(in.Method, again)
		}
	})
	if err := failure(in.Method, lineup.links, parts); err != nil {
		return nil, err
	}
	items := []json.RawMessage{}
	next := make(map[string]place)
	var endless error
	var result union
	for i := range parts {
		page := parts[i].page
		if page == nil {
			continue
		}
		name := lineup.links[i].name
		now := cursors[name]
		follows, more, err := now.next(page)
		if errors.Is(err, errFirstPage) {
			continue
		}
		items = append(items, c.itemsOf(what, lineup, i, page)...)
		switch {
		case err != nil:
			endless = fmt.Errorf("the server %q: %w", name, err)
			c.log.Warn("a server's list is left out from here on", "server", name, "method", in.Method, "error", err)
		case more:
			next[name] = follows
		}
		jsonrpc.Each(page, func(name, value []byte) {
			if name := string(name); name != what.member && name != "nextCursor" {
				result.add(name, value)
			}
		})
	}
	if endless != nil && len(items) == 0 && len(next) == 0 {
		return nil, jsonrpc.Errorf(jsonrpc.CodeServer, "%s: %v", in.Method, endless)
	}
	result.add(what.member, appendArray(nil, items))
	if len(next) > 0 {
		result.add("nextCursor", jsonrpc.Quote(cursorOf(next)))
	}
	return result.text(), nil
}

// listed returns the server's part of a page of a list. It opens the server, unless that has just failed.
func (l *link) listed(ctx context.Context, in backend.Inbound, params []byte, what listing) part {
	offers, err := l.offers(what.capability)
	if offers && err == nil {
		if !l.opens(ctx, in) {
			return part{err: l.notOpen()}
		}
		offers, err = l.offers(what.capability)
	}
	if !offers || err != nil {
		return part{err: err}
	}
	list := matter{l.name, in.Method}
	wait, began := l.c.b.waitFor(list), time.Now()
	ctx, stop := context.WithTimeout(ctx, wait)
	defer stop()
	p := l.part(ctx, in, params)
	switch {
	case p.err == nil: // method part has noted that
	case !errors.Is(p.err, errLate):
		l.outcome(list, p.err)
	case time.Since(began) >= wait: // else the opening took so long
		l.c.b.setLate(list, true)
		p.err = l.c.b.inVain(list, p.err)
	}
	return p
}

// failure returns the error of a list: the servers that get the client's token refuse it, or servers have failed
// and there is no part at all; else nil.
func failure(method string, links []*link, parts []part) error {
	var refused error
	var trouble []string
	none, taken := true, false
	for i, l := range links {
		page, err := parts[i].page, parts[i].err
		none = none && page == nil
		taken = taken || l.takesToken && page != nil
		if err == nil {
			continue
		}
		if refused == nil && wantsToken(err) {
			refused = err
		}
		trouble = append(trouble, fmt.Sprintf("%q: %v", l.name, err))
	}
	switch {
	case refused != nil && !taken:
		return refused
	case none && len(trouble) > 0:
		errs := make([]error, len(parts))
		for i := range parts {
			errs[i] = parts[i].err
		}
		if own := ownRefused(method+": no server has answered", links, errs); own != nil {
			return own
		}
		return jsonrpc.Errorf(jsonrpc.CodeServer, "%s: no server has answered: %s", method, strings.Join(trouble, "; "))
	}
	return nil
}

// notOpen returns why the server is not open.
func (l *link) notOpen() error {
	l.mu.Lock()
	why := l.why
	if l.state != linkClosed {
		why = nil
	}
	l.mu.Unlock()
	if why != nil {
		return why
	}
	return l.c.b.inVain(matter{member: l.name}, errNotOpen)
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

// offers reports whether a server may have a capability: its result says so, or it was not opened yet. The error
// says why the server could not be opened just now.
func (l *link) offers(capability string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.result != nil && jsonrpc.Field(l.result, "capabilities", capability) == nil {
		return false, nil
	}
	if l.state == linkClosed && time.Since(l.failed) < againAfter {
		return true, l.why
	}
	return true, nil
}

// setLevel sets the level of all servers that log.
func (c *conn) setLevel(ctx context.Context, in backend.Inbound) ([]byte, error) {
	ctx, stop := context.WithTimeout(ctx, stateFor)
	defer stop()
	each(c.links(), func(_ int, l *link) {
		if offers, err := l.offers("logging"); l.isOpen() && offers && err == nil {
			what := matter{l.name, in.Method}
			if !l.isReady() { // the server gets the level when it is ready, but the client does not wait for that
				what.method = ""
			}
			ctx, stop := context.WithTimeout(ctx, c.b.waitFor(what))
			defer stop()
			_, err := l.ask(ctx, in, in.Params) // others learn of the level when they are opened
			if what.method != "" {
				l.outcome(what, err)
			}
		}
	})
	return nil, nil
}

// vendors makes a request of a method that no revision has: to one server after the other, until one knows the method. A
// request that a server may have begun is made to no other.
func (c *conn) vendors(ctx context.Context, in backend.Inbound) ([]byte, error) {
	var unknown error
	links := c.links()
	for _, l := range links { // at once: the client waits for all of them no longer than for one
		l.starts(in)
	}
	for _, l := range links {
		if !l.opens(ctx, in) {
			why := l.notOpen()
			c.log.Debug("server of the merged ones not asked", "server", l.name, "method", in.Method, "error", why)
			if unknown == nil && refusesOwn(why) {
				unknown = why
			}
			continue
		}
		m, err := l.ask(ctx, in, in.Params)
		var untouched *notRun
		switch of := (&failed{m.Error}); {
		case errors.As(err, &untouched):
			c.log.Debug("server of the merged ones not asked", "server", l.name, "method", in.Method, "error", err)
		case refusesOwn(err):
			if unknown == nil {
				unknown = err
			}
		case err != nil && !wantsToken(err):
			return nil, jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "%s: the server %q: %v", protocol.TextOutcomeUnknown, l.name, err)
		case err != nil:
			return nil, err
		case m.Error == nil:
			return m.Result, nil
		case !of.is(jsonrpc.CodeMethodNotFound):
			return nil, of
		case unknown == nil:
			unknown = of
		}
	}
	if unknown == nil {
		unknown = jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "no server of the merged ones could be asked for %s", in.Method)
	}
	return nil, unknown
}
