package servers

import (
	"bytes"
	"encoding/json"
	"strconv"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file announces changes of lists to clients, also if their server says that its own never change: the file may. In
// legacy revisions the capability listChanged announces them; in 2026-07-28 a subscriptions/listen that asks for them is
// acknowledged with them, and lasts. Package session sends the notifications.

// lists are the lists of a server, and the members of a listen's filter for their changes.
var lists = []struct{ capability, wanted string }{{"tools", "toolsListChanged"}, {"prompts", "promptsListChanged"}, {"resources", "resourcesListChanged"}}

// announcing returns the result of initialize or server/discover with the capability to tell of changes of each list.
func announcing(result []byte) []byte {
	for _, list := range lists {
		if has := jsonrpc.Field(result, "capabilities", list.capability); len(has) > 0 && has[0] == '{' {
			result, _ = jsonrpc.Set(result, []byte("true"), "capabilities", list.capability, "listChanged")
		}
	}
	return result
}

// A listen is a subscriptions/listen in flight that asks for changes of lists.
type listen struct {
	id     []byte
	call   backend.Call
	wants  []string // members of its filter
	acked  bool     // its client has the acknowledgement
	agreed bool     // the server has agreed to a notification
	lasted bool     // the server has ended it, as it has not agreed, and the client does not know
}

// listens notes a listen. It is called before the request is delivered.
func (c *conn) listens(in backend.Inbound) {
	filter := jsonrpc.Field(in.Params, "notifications")
	l := &listen{id: bytes.Clone(in.ID), call: in.Call}
	for _, list := range lists {
		if string(jsonrpc.Field(filter, list.wanted)) == "true" {
			l.wants = append(l.wants, list.wanted)
		}
	}
	if l.wants == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listening == nil {
		c.listening = make(map[string]*listen)
	}
	key := string(jsonrpc.Key(in.ID))
	if c.listening[key] == nil {
		c.watched.Add(1)
	}
	c.listening[key] = l
}

// unlisten forgets a listen, and reports whether the server has ended it.
func (c *conn) unlisten(id []byte) (lasted bool) {
	key := string(jsonrpc.Key(id))
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.listening[key]
	if l == nil {
		return false
	}
	delete(c.listening, key)
	c.watched.Add(-1)
	return l.lasted
}

// acknowledged returns the acknowledgement of a listen with the changes of lists that are announced here.
func (c *conn) acknowledged(m jsonrpc.Message) jsonrpc.Message {
	id := jsonrpc.Field(m.Params, "_meta", protocol.MetaSubscriptionID)
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.listening[string(jsonrpc.Key(id))]
	if l == nil {
		return m
	}
	l.acked, l.agreed = true, agrees(jsonrpc.Field(m.Params, "notifications"))
	params := m.Params
	if jsonrpc.Field(params, "notifications") == nil {
		params, _ = jsonrpc.Set(params, []byte("{}"), "notifications")
	}
	for _, wanted := range l.wants {
		params, _ = jsonrpc.Set(params, []byte("true"), "notifications", wanted)
	}
	m.Params, m.Raw = params, jsonrpc.AppendRequest(nil, nil, m.Method, params)
	return m
}

// agrees reports whether the filter that a server acknowledges lets any notification through.
func agrees(filter []byte) bool {
	some := false
	jsonrpc.Each(filter, func(_, value []byte) {
		var list []json.RawMessage
		some = some || string(value) != "false" && string(value) != "null" && (json.Unmarshal(value, &list) != nil || len(list) > 0)
	})
	return some
}

// lasts reports whether a response is to a listen that goes on without its server, which tells of no changes, or does not
// know listens. Its client gets an acknowledgement, if the server sent none.
func (c *conn) lasts(m jsonrpc.Message) bool {
	c.mu.Lock()
	l := c.listening[string(jsonrpc.Key(m.ID))]
	if l == nil {
		c.mu.Unlock()
		return false
	}
	if l.agreed || m.Error != nil && string(jsonrpc.Field(m.Error, "code")) != strconv.Itoa(jsonrpc.CodeMethodNotFound) {
		delete(c.listening, string(jsonrpc.Key(m.ID)))
		c.watched.Add(-1)
		c.mu.Unlock()
		return false
	}
	l.lasted = true
	acked := l.acked
	c.mu.Unlock()
	if !acked {
		params, _ := jsonrpc.Set([]byte("{}"), l.id, "_meta", protocol.MetaSubscriptionID)
		c.sink.Emit(l.call, c.acknowledged(jsonrpc.Message{Kind: jsonrpc.Notification, Method: protocol.MethodAcknowledged, Params: params}))
	}
	return true
}
