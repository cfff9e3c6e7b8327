package merge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// begin begins to answer the client's initialize. If servers get the client's token, or all get the operator's credentials, begin
// waits, at most verdictWait, until such servers have accepted or refused them: as long as the client has no answer, it can get the
// server's status and challenge.
func (c *conn) begin(in backend.Inbound) error {
	revision := jsonrpc.String(jsonrpc.Field(in.Params, "protocolVersion"))
	if !protocol.Known(revision) {
		revision = protocol.V20251125
		in.Params, _ = jsonrpc.Set(in.Params, jsonrpc.Quote(revision), "protocolVersion")
	}
	c.mu.Lock()
	c.initialize = bytes.Clone(in.Params) // and not the body with it
	c.mu.Unlock()
	if links := c.links(); !slices.ContainsFunc(links, func(l *link) bool { return l.takesToken }) && !allOwn(links) {
		c.gather(in, func(ctx context.Context, in backend.Inbound) ([]byte, error) {
			return c.initializeAll(ctx, in, revision, nil)
		})
		return nil
	}
	v := &verdict{said: make(chan error, 1)}
	c.gather(in, func(ctx context.Context, in backend.Inbound) ([]byte, error) {
		return c.initializeAll(ctx, in, revision, v)
	})
	late := time.NewTimer(verdictWait)
	defer late.Stop()
	select {
	case err := <-v.said:
		return err
	case <-late.C:
	case <-c.ctx.Done():
	}
	if v.over.CompareAndSwap(false, true) {
		return nil
	}
	return <-v.said // just now
}

// A verdict says whether servers take the client's token. over is set once: when it is said, or waited for no longer.
type verdict struct {
	said chan error
	over atomic.Bool
}

// verdictWait bounds how long the delivery of initialize waits for servers that may refuse the client.
const verdictWait = 10 * time.Second

// errDelivered says that the client is answered with the error of the delivery.
var errDelivered = errors.New("the client is refused")

// initializeAll opens all servers, and answers the client with their results as one. The client hears of slow
// servers by a change of its lists. If servers get the client's token, and none takes it, the client is refused.
// v, if not nil, gets that verdict.
func (c *conn) initializeAll(ctx context.Context, in backend.Inbound, revision string, v *verdict) ([]byte, error) {
	lineup := c.lineup.Load() // the same to the end: if there is another meanwhile, the client is told of the change
	var takers, opening sync.WaitGroup
	own := allOwn(lineup.links)
	for _, l := range lineup.links {
		if l.takesToken || own {
			takers.Add(1)
		}
		opening.Go(func() {
			l.opens(ctx, in)
			if l.takesToken || own {
				takers.Done()
			}
		})
	}
	takers.Wait()
	refused := refusal(lineup.links)
	if own {
		refused = ownRefusal(lineup.links)
	}
	heard := v != nil && v.over.CompareAndSwap(false, true)
	if heard {
		v.said <- refused
	}
	switch {
	case refused != nil && heard:
		return nil, errDelivered
	case refused != nil:
		return nil, refused
	}
	opening.Wait()
	c.awaitOne(ctx, lineup.links)
	if ctx.Err() != nil {
		return nil, nil
	}
	var capabilities, all union
	var instructions, trouble []string
	found, missing, coming := false, false, false
	for i, l := range lineup.links {
		l.mu.Lock()
		result, open := l.result, l.state == linkOpen
		coming = coming || l.state == linkOpening
		l.mu.Unlock()
		missing = missing || !open
		if result == nil {
			trouble = append(trouble, fmt.Sprintf("%q: %v", l.name, l.notOpen()))
			continue
		}
		found = true
		addCapabilities(&capabilities, jsonrpc.Field(result, "capabilities"))
		jsonrpc.Each(result, func(name, value []byte) {
			switch name := string(name); name {
			case "protocolVersion", "capabilities", "serverInfo", "instructions":
			default: // members that no revision has
				all.add(name, value)
			}
		})
		if text := jsonrpc.String(jsonrpc.Field(result, "instructions")); text != "" {
			instructions = append(instructions, fmt.Sprintf("# %s (%s)\n\n%s", l.name, lineup.members[i].Prefix, text))
		}
	}
	if !found && !coming { // else the client is told when a server is there
		return nil, jsonrpc.Errorf(jsonrpc.CodeServer, "none of the servers could be opened: %s", strings.Join(trouble, "; "))
	}
	if missing { // the server has tools, as a rule, and some clients hear only of changes that were announced
		addCapabilities(&capabilities, []byte(`{"tools":{}}`))
	}
	all.add("protocolVersion", jsonrpc.Quote(revision))
	all.add("capabilities", capabilities.text())
	all.add("serverInfo", []byte(`{"name":"holdfast","version":"1"}`))
	if len(instructions) > 0 {
		all.add("instructions", jsonrpc.Quote(strings.Join(instructions, "\n\n")))
	}
	return all.text(), nil
}

// refusal returns the error of a server that refuses the client's token, if none of the servers that get the token
// takes it: it has expired, or the client has none. If other servers take it, one that refuses it is left out, as the
// client can do nothing about that.
func refusal(links []*link) (refused error) {
	for _, l := range links {
		if !l.takesToken {
			continue
		}
		l.mu.Lock()
		why, open := l.why, l.state == linkOpen
		l.mu.Unlock()
		if open {
			return nil
		}
		if refused == nil && wantsToken(why) {
			refused = why
		}
	}
	return refused
}

// allOwn reports whether all servers get credentials of the operator.
func allOwn(links []*link) bool {
	return len(links) > 0 && !slices.ContainsFunc(links, func(l *link) bool { return !l.ownCredentials })
}

// ownRefusal returns an error if all servers refuse the credentials of the operator, else nil.
func ownRefusal(links []*link) error {
	errs := make([]error, len(links))
	for i, l := range links {
		l.mu.Lock()
		if l.state == linkClosed {
			errs[i] = l.why
		}
		l.mu.Unlock()
	}
	return ownRefused("none of the servers could be opened", links, errs)
}

// ownRefused returns the error for a client that gets nothing, if each of the servers' errors says that the server
// refuses the credentials of the operator; else nil.
func ownRefused(what string, links []*link, errs []error) error {
	var trouble []string
	for i, err := range errs {
		if !refusesOwn(err) {
			return nil
		}
		trouble = append(trouble, fmt.Sprintf("%q: %v", links[i].name, err))
	}
	return &protocol.Unauthorized{Status: http.StatusBadGateway, Text: what + ": " + strings.Join(trouble, "; ")}
}

// refusesOwn reports whether an error says that a server refuses the credentials of the operator: the server has not begun the request.
func refusesOwn(err error) bool {
	var refused *protocol.Unauthorized
	return errors.As(err, &refused) && refused.Status == http.StatusBadGateway
}

// wantsToken reports whether an error says that a server wants another token of its client.
func wantsToken(err error) bool {
	var refused *protocol.Unauthorized
	return errors.As(err, &refused) && (refused.Status == http.StatusUnauthorized || len(refused.Challenge) > 0)
}

// addCapabilities adds the capabilities of a server to those of the others, as JSON. Lists may
// change, as a server may come back. Tasks are Holdfast's: nothing says which server a task would belong to.
func addCapabilities(all *union, of []byte) {
	jsonrpc.Each(of, func(name, value []byte) {
		switch name := string(name); name {
		case "tasks":
		case "tools", "prompts", "resources":
			value, _ = jsonrpc.Set(value, []byte("true"), "listChanged")
			fallthrough
		default:
			all.add(name, value)
		}
	})
}

// opens opens the server, and waits for that until the time of [Backend.waitFor] is over: it counts from the beginning of the
// opening, also for clients that come later. It reports whether the server is open.
func (l *link) opens(ctx context.Context, in backend.Inbound) bool {
	l.mu.Lock()
	if l.state == linkOpen {
		l.mu.Unlock()
		return true
	}
	l.open(in)
	ready, began := l.ready, l.began
	l.mu.Unlock()
	if ready == nil { // the conversation ends
		return false
	}
	wait := time.NewTimer(l.c.b.waitFor(matter{member: l.name}) - time.Since(began))
	defer wait.Stop()
	select {
	case <-ready:
	case <-wait.C:
		l.isLate()
	case <-ctx.Done():
	}
	return l.isReady()
}

// awaitOne waits until one of the servers is open, if none is and some are being opened: a client has nothing without any. It
// waits as long as for a server that is not known to be slow.
func (c *conn) awaitOne(ctx context.Context, links []*link) {
	came := make(chan struct{}, len(links))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	coming := 0
	for _, l := range links {
		l.mu.Lock()
		state, ready, left := l.state, l.ready, initWait-time.Since(l.began)
		l.mu.Unlock()
		switch {
		case state == linkOpen:
			return
		case state != linkOpening || left <= 0:
			continue
		}
		coming++
		c.work.Go(func() {
			late := time.NewTimer(left)
			defer late.Stop()
			select {
			case <-ready:
			case <-late.C:
			case <-ctx.Done():
			}
			came <- struct{}{}
		})
	}
	for ; coming > 0; coming-- {
		<-came
		if slices.ContainsFunc(links, (*link).isReady) {
			return
		}
	}
}

// starts begins to open the server, and does not wait for that.
func (l *link) starts(in backend.Inbound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open(in)
}

// isReady reports whether the server is open.
func (l *link) isReady() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == linkOpen
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

// A place is the position of a client in a server's list. It is a part of cursors, so it is short however long the list is.
type place struct {
	Cursor json.RawMessage `json:"c"`           // as the server spelled it
	Mark   json.RawMessage `json:"m,omitempty"` // a cursor of before, by which a circle is found (R. P. Brent, 1980)
	Count  int             `json:"n"`           // of the pages that came
	First  string          `json:"f,omitempty"` // a hash of the first page, where the cursor is empty
}

// mostPages bounds how many pages a list may have.
const mostPages = 10_000

// errFirstPage says that a page is the first one again: its server means by an empty cursor that there are no more pages.
var errFirstPage = errors.New("the first page comes again")

// next returns the place after a page that was asked for at p; more is false if the page is the last one.
func (p place) next(page []byte) (after place, more bool, err error) {
	if p.First != "" && p.First == hashOf(page) {
		return after, false, errFirstPage
	}
	after.Cursor, after.Mark, after.Count = protocol.NextCursor(page), p.Mark, p.Count+1
	switch {
	case after.Cursor == nil:
		return after, false, nil
	case string(after.Cursor) == string(p.Cursor), string(after.Cursor) == string(p.Mark):
		return after, false, fmt.Errorf("the list has no end: the cursor %.60s of page %d comes again", after.Cursor, after.Count)
	case after.Count >= mostPages:
		return after, false, fmt.Errorf("the list has no end: there is another page after %d", after.Count)
	}
	if after.Count&(after.Count-1) == 0 {
		after.Mark = after.Cursor
	}
	if p.Count == 0 && string(after.Cursor) == `""` {
		after.First = hashOf(page)
	}
	return after, true, nil
}

// hashOf returns a short hash of a page.
func hashOf(page []byte) string {
	sum := sha256.Sum256(page)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// parseCursor returns the places that a client's cursor has.
func parseCursor(raw []byte) (cursors map[string]place, ok bool) {
	text, err := base64.RawURLEncoding.DecodeString(jsonrpc.String(raw))
	if err != nil || json.Unmarshal(text, &cursors) != nil || cursors == nil {
		return nil, false
	}
	for _, at := range cursors {
		if len(at.Cursor) == 0 {
			return nil, false
		}
	}
	return cursors, true
}

func cursorOf(next map[string]place) string {
	text, _ := json.Marshal(next) // the cursors are JSON already
	return base64.RawURLEncoding.EncodeToString(text)
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
