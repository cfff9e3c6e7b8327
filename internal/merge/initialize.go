package merge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

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
