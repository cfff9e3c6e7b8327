// Package merge is a backend over backends: it serves several servers as one. A conversation has
// a conversation with each server (a link). Tools and prompts have their server's prefix, by
// which calls are routed, also on a node that has never seen a list and while a server is away.
// Resources are routed by their URIs, as they were listed, and else by asking the servers.
//
// A server that fails does not harm the others: it is left out of lists, its calls fail, and it
// is opened again when it is needed.
//
// The conversations are in legacy revisions; package translate is above and below.
package merge

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// A Member is one of the servers.
type Member struct {
	Name    string
	Backend backend.Backend
	// Prefix begins the names of its tools and prompts. No other member has the same.
	Prefix string
	// Prefixed says that the server's own names begin with the prefix.
	Prefixed bool
	// TakesToken says that the server gets the client's token, and may refuse the client for it.
	TakesToken bool
	// OwnCredentials says that the server gets credentials of the operator, and may refuse those.
	OwnCredentials bool
}

// A Backend serves its members as one. Its methods may be called concurrently.
type Backend struct {
	log     *slog.Logger
	members func() []Member

	mu      sync.Mutex
	conns   map[*conn]struct{}
	long    map[string]bool   // members with a long name, for which that was logged
	late    map[matter]bool   // matters that clients have waited for in vain, or that have failed, until they work
	trouble map[matter]string // why a matter last failed, until it works; "": it was not there in time
	worked  map[string]bool   // members that were open once, and for which no call has waited in vain since
	retries map[backend.Backend]*retry
}

// New returns a backend. members returns the servers for a new conversation, in their order.
func New(members func() []Member, log *slog.Logger) *Backend {
	return &Backend{
		log: log, members: members, conns: make(map[*conn]struct{}), late: make(map[matter]bool), long: make(map[string]bool),
		trouble: make(map[matter]string), worked: make(map[string]bool), retries: make(map[backend.Backend]*retry),
	}
}

// longName is how many bytes a name may have for all hosts.
const longName = 64

// first reports whether it is the first time that a member has a long name.
func (b *Backend) first(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.long[name]
	b.long[name] = true
	return !was
}

// A matter is an act of a member, the same for all clients: to open, or to answer a method.
type matter struct {
	member string // by name
	method string // to answer; "": to open
}

// waitFor returns how long a client waits for a member. Once a member has hung or failed, clients in
// all conversations wait for lateWait only, and hear of a later answer as a change.
func (b *Backend) waitFor(what matter) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.late[what] {
		return lateWait
	}
	return initWait
}

// waitToCall returns how long a call waits for a member that is being opened. If the member has been open before, its
// process may just be slow to start, and a call has no other member: it waits longer, until a call has waited in vain.
func (b *Backend) waitToCall(member string) time.Duration {
	b.mu.Lock()
	worked := b.worked[member]
	b.mu.Unlock()
	if worked {
		return partFor
	}
	return b.waitFor(matter{member: member})
}

// setWorked notes whether calls wait for a member as for one that works.
func (b *Backend) setWorked(member string, worked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.worked[member] = worked
}

// setLate notes whether a member was waited for in vain, or has failed.
func (b *Backend) setLate(what matter, late bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if late {
		b.late[what] = true
	} else {
		delete(b.late, what)
	}
}

// apart separates the links to members that can be waited for from those that clients have waited for in vain, to open or to
// answer a method.
func (b *Backend) apart(links []*link, method string) (well, late []*link) {
	for _, l := range links {
		open := l.isReady()
		b.mu.Lock()
		is := b.late[matter{l.name, method}] || b.late[matter{member: l.name}] && !open
		b.mu.Unlock()
		if is {
			late = append(late, l)
		} else {
			well = append(well, l)
		}
	}
	return well, late
}

// SeparatesCallers says that the members are told of conversations that several callers share, and not the whole: a call
// that needs a server alone need not open all the others.
func (b *Backend) SeparatesCallers() bool { return true }

// Open implements [backend.Backend]. The servers are opened by the client's first request.
func (b *Backend) Open(_ context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	c := &conn{b: b, start: start, sink: sink, log: b.log.With("session", start.Session)}
	c.start.HTTP = nil
	c.ctx, c.cancel = context.WithCancel(context.Background())
	b.mu.Lock() // else a change could pass between the two
	defer b.mu.Unlock()
	c.setMembers(b.members())
	b.conns[c] = struct{}{}
	return c, nil
}

// Changed makes all conversations go on with the members as they are now, and tells their clients that
// the lists have changed. A server that is a member as before keeps its part of each conversation.
func (b *Backend) Changed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	members := b.members()
	maps.DeleteFunc(b.retries, func(of backend.Backend, r *retry) bool {
		return !r.busy && !slices.ContainsFunc(members, func(m Member) bool { return m.Backend == of })
	})
	for c := range b.conns {
		for _, l := range c.setMembers(members) {
			c.work.Go(func() { c.leave(l) })
		}
		c.work.Go(c.tellChanged)
	}
}

// Route returns the member that a name of a tool or prompt belongs to, and its own name for it.
func Route(members []Member, name string) (i int, own string, ok bool) {
	i = -1
	for n := range members {
		if p := members[n].Prefix; strings.HasPrefix(name, p) && (i < 0 || len(p) > len(members[i].Prefix)) {
			i = n
		}
	}
	if i < 0 {
		return 0, "", false
	}
	if members[i].Prefixed {
		return i, name, true
	}
	return i, name[len(members[i].Prefix):], true
}

// A conn is a conversation with all servers.
type conn struct {
	b      *Backend
	start  backend.Start
	sink   backend.Sink
	log    *slog.Logger
	lineup atomic.Pointer[lineup]
	ids    rpc.OwnIDs // of our own requests
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines that end by themselves

	mu          sync.Mutex
	closed      bool
	leaving     []*link // of servers that are members no longer, with requests in flight
	initialize  []byte  // the params of the client's request
	initialized bool    // the client has sent the notification
	untold      bool    // the lists have changed before that
	level       []byte  // the params of the last logging/setLevel
	owners      owners
	asked       map[string]asked              // requests of servers to the client, by our ids
	visits      map[string]*link              // servers that want the client to visit a URL, by the elicitation's id
	oldVisits   map[string]*link              // the same for visits that were wanted earlier
	gathering   map[string]context.CancelFunc // requests of the client that several servers answer, by their ids
}

// A lineup is the members at one time, and their links. It is not changed.
type lineup struct {
	members []Member
	links   []*link
}

// asked is a request of a server to the client.
type asked struct {
	l  *link
	id []byte // the server's
}

var errClosed = errors.New("the conversation has ended")

// links returns the links of the members at this time.
func (c *conn) links() []*link { return c.lineup.Load().links }

// setMembers makes the conversation go on with other members. It returns the links of servers that
// are members no longer. It must not be called concurrently.
func (c *conn) setMembers(members []Member) (left []*link) {
	next := &lineup{members: members, links: make([]*link, len(members))}
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.lineup.Load()
	if was == nil {
		was = &lineup{}
	}
	kept := make(map[*link]bool)
	for i, m := range members {
		l := &link{c: c, name: m.Name, backend: m.Backend, takesToken: m.TakesToken, ownCredentials: m.OwnCredentials, pending: make(map[string]*pending)}
		for _, old := range was.links {
			switch {
			case old.name != m.Name:
			case old.backend == m.Backend:
				l, kept[old] = old, true
			default:
				l.subs = old.subscribed()
			}
		}
		next.links[i] = l
	}
	for _, old := range was.links {
		if !kept[old] {
			left = append(left, old)
		}
	}
	c.leaving = append(c.leaving, left...)
	c.lineup.Store(next)
	return left
}

// leave closes the link of a server that is a member no longer, when it is quiet.
func (c *conn) leave(l *link) {
	l.leave()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = slices.DeleteFunc(c.leaving, func(one *link) bool { return one == l && c.ctx.Err() == nil })
}

// allLinks returns the links of the members, and those of servers that are members no longer.
func (c *conn) allLinks() []*link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Concat(c.links(), c.leaving)
}

// nextID returns an id of our own.
func (c *conn) nextID() []byte { return c.ids.Next() }

// Deliver implements [backend.Conn].
func (c *conn) Deliver(in backend.Inbound) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return errClosed
	}
	switch in.Kind {
	case jsonrpc.Response:
		return c.answered(in)
	case jsonrpc.Notification:
		c.notify(in)
	case jsonrpc.Request:
		if in.Method == protocol.MethodInitialize {
			return c.begin(in)
		}
		c.request(in)
	}
	return nil
}

// request begins to answer a request, but initialize.
func (c *conn) request(in backend.Inbound) {
	switch in.Method {
	case protocol.MethodPing:
		c.respond(in, nil, nil)
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list":
		c.gather(in, c.list)
	case "tools/call", protocol.MethodGetPrompt:
		c.named(in, "name")
	case "completion/complete":
		if protocol.CompletesPrompt(in.Params) {
			c.named(in, "ref", "name")
		} else {
			c.resource(in, jsonrpc.String(jsonrpc.Field(in.Params, "ref", "uri")))
		}
	case protocol.MethodReadResource, protocol.MethodSubscribe, protocol.MethodUnsubscribe:
		c.resource(in, jsonrpc.String(jsonrpc.Field(in.Params, "uri")))
	case protocol.MethodSetLevel:
		c.mu.Lock()
		c.level = protocol.Setting(in.Params)
		c.mu.Unlock()
		c.gather(in, c.setLevel)
	default:
		if strings.HasPrefix(in.Method, "tasks/") {
			c.respond(in, nil, jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "method %s is not served where servers are merged", in.Method))
			return
		}
		c.gather(in, c.vendors)
	}
}

// named routes a request by the name of a tool or prompt in it.
func (c *conn) named(in backend.Inbound, at ...string) {
	name := jsonrpc.String(jsonrpc.Field(in.Params, at...))
	lineup := c.lineup.Load()
	i, own, ok := Route(lineup.members, name)
	if !ok {
		c.respond(in, nil, protocol.UnknownName(in.Method, name))
		return
	}
	if own != name {
		protocol.Rename(&in.Message, own, at...)
	}
	lineup.links[i].send(in, nil)
}

// notify passes a notification of the client on.
func (c *conn) notify(in backend.Inbound) {
	switch in.Method {
	case protocol.MethodInitialized:
		c.mu.Lock()
		c.initialized = true
		untold := c.untold
		c.untold = false
		c.mu.Unlock()
		if untold {
			defer c.tellChanged()
		}
	case protocol.MethodCancelled:
		id := jsonrpc.Field(in.Params, "requestId")
		c.mu.Lock()
		stop := c.gathering[string(jsonrpc.Key(id))]
		c.mu.Unlock()
		if stop != nil {
			stop()
			return
		}
		for _, l := range c.allLinks() {
			if l.has(id) && !l.withdraw(id) {
				l.send(in, nil)
				l.take(id) // the server need not answer it
			}
		}
		return
	}
	if in.Method == protocol.MethodInitialized {
		c.tellInitialized(in)
		return
	}
	for _, l := range c.allLinks() {
		if l.isOpen() { // else it learns of the state when it is opened
			l.send(in, nil)
		}
	}
}

// tellInitialized passes notifications/initialized on. Servers over HTTP may be slow to take it. No server may get a
// request before that, but one that hangs does not keep the others waiting.
func (c *conn) tellInitialized(in backend.Inbound) {
	var open []*link
	for _, l := range c.allLinks() {
		if l.isOpen() {
			open = append(open, l)
		}
	}
	each(open, func(_ int, l *link) {
		if !c.startWork() {
			return
		}
		what, told := matter{l.name, in.Method}, make(chan struct{})
		go func() {
			defer c.work.Done()
			l.send(in, nil)
			close(told)
			c.b.setLate(what, false)
		}()
		wait := time.NewTimer(c.b.waitFor(what))
		defer wait.Stop()
		select {
		case <-told:
		case <-wait.C:
			c.b.setLate(what, true)
		}
	})
}

// answered hands the client's response to the server that has asked. After an error the response can be delivered again.
func (c *conn) answered(in backend.Inbound) error {
	key := string(jsonrpc.Key(in.ID))
	c.mu.Lock()
	a, ok := c.asked[key]
	delete(c.asked, key)
	c.mu.Unlock()
	if !ok {
		return nil
	}
	in.Raw = in.WithID(a.id)
	in.ID = a.id
	ended, err := a.l.reply(in)
	if err == nil || ended() {
		return nil // a server that has ended waits for no response
	}
	c.mu.Lock()
	c.asked[key] = a
	c.mu.Unlock()
	if ended() { // since then, so that [conn.dropAsked] may have missed it
		c.mu.Lock()
		delete(c.asked, key)
		c.mu.Unlock()
		return nil
	}
	return err
}

// respond answers a request of the client.
func (c *conn) respond(in backend.Inbound, result []byte, failure *jsonrpc.Error) {
	c.sink.Emit(in.Call, response(in.ID, result, failure))
}

func response(id, result []byte, failure *jsonrpc.Error) jsonrpc.Message {
	m := jsonrpc.Message{Kind: jsonrpc.Response, ID: id}
	if failure != nil {
		m.Raw = jsonrpc.AppendError(nil, id, failure)
		m.Error = jsonrpc.Field(m.Raw, "error")
		return m
	}
	if result == nil {
		result = []byte("{}")
	}
	m.Result, m.Raw = result, jsonrpc.AppendResult(nil, id, result)
	return m
}

// A failed is the error with which a server has answered, unchanged.
type failed struct{ raw []byte }

func (f *failed) Error() string {
	if text := jsonrpc.String(jsonrpc.Field(f.raw, "message")); text != "" {
		return text
	}
	return string(f.raw)
}

// is reports whether the server's error has a code.
func (f *failed) is(code int) bool { return string(jsonrpc.Field(f.raw, "code")) == strconv.Itoa(code) }

// An answerer answers a request. Its error is a [jsonrpc.Error], a failed, or has a [protocol.Unauthorized] in it.
type answerer func(ctx context.Context, in backend.Inbound) ([]byte, error)

// gather answers a request with the answers of several servers, in the background. A request
// that is cancelled gets no response.
func (c *conn) gather(in backend.Inbound, answer answerer) {
	ctx, cancel := context.WithCancel(c.ctx)
	key := string(jsonrpc.Key(in.ID))
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		cancel()
		return
	}
	if c.gathering == nil {
		c.gathering = make(map[string]context.CancelFunc)
	}
	c.gathering[key] = cancel
	c.work.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.work.Done()
		defer cancel()
		result, err := answer(ctx, in)
		c.mu.Lock()
		delete(c.gathering, key)
		c.mu.Unlock()
		if ctx.Err() != nil || errors.Is(err, errDelivered) {
			return
		}
		if said, ok := errors.AsType[*failed](err); ok {
			raw := jsonrpc.Message{Kind: jsonrpc.Response, Error: said.raw}
			c.sink.Emit(in.Call, jsonrpc.Message{Kind: jsonrpc.Response, ID: in.ID, Error: said.raw, Raw: raw.WithID(in.ID)})
			return
		}
		var failure *jsonrpc.Error
		if err != nil && !errors.As(err, &failure) {
			failure = jsonrpc.Errorf(jsonrpc.CodeServer, "%v", err)
		}
		if of, ok := in.Call.(refusable); ok && err != nil {
			of.Refused(err)
		}
		c.respond(in, result, failure)
	}()
}

// tellChanged tells the client that the lists have changed.
func (c *conn) tellChanged() {
	c.mu.Lock()
	tell := c.initialized && !c.closed
	c.untold = !c.initialized
	c.mu.Unlock()
	if !tell {
		return
	}
	for _, method := range []string{protocol.MethodToolsListChanged, protocol.MethodPromptsListChanged, protocol.MethodResourcesListChanged} {
		c.sink.EmitUnrelated(jsonrpc.Message{Kind: jsonrpc.Notification, Method: method, Raw: jsonrpc.AppendRequest(nil, nil, method, nil)})
	}
}

// Close implements [backend.Conn].
func (c *conn) Close() error {
	c.b.mu.Lock()
	delete(c.b.conns, c)
	c.b.mu.Unlock()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	var closing sync.WaitGroup
	for _, l := range c.allLinks() {
		closing.Go(func() { l.close() })
	}
	closing.Wait()
	c.work.Wait()
	return nil
}

// requestOf returns the HTTP request with which a server is opened for a message.
func requestOf(ctx context.Context, in backend.Inbound) *http.Request {
	values := in.Context
	if values == nil {
		values = ctx
	}
	header := in.Header
	if header == nil {
		header = make(http.Header)
	}
	return (&http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}, Header: header}).WithContext(context.WithoutCancel(values))
}

// openFor bounds how long a server may take to start and to answer initialize, and initWait how
// long a client waits for that when it begins or asks for a list: it hears of later answers as a change.
const (
	openFor  = 60 * time.Second
	initWait = 5 * time.Second
	// stateFor bounds how long servers may take to answer the client's logging/setLevel.
	stateFor = 5 * time.Second
	// restateFor bounds how long a server that is being opened may take for the level and the subscriptions: clients wait for it.
	restateFor = 2 * time.Second
	// partFor bounds how long a server may take to answer a request that another may answer.
	partFor  = 15 * time.Second
	lateWait = 500 * time.Millisecond // for a server that was waited for in vain, or has failed
	// againAfter is how long a server that could not be opened is left alone by lists.
	againAfter = 5 * time.Second
)
