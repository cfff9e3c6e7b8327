package translate

import (
	"encoding/json"

	"holdfast/backend"
	"holdfast/jsonrpc"
)

// codeURLRequired is the error of a server of 2025-11-25 that wants its client to visit a URL
// before it makes the request again (Elicitation, "URL Elicitation Required Error"). Modern
// servers do not have it: they ask, in an InputRequiredResult.
const codeURLRequired = "-32042"

// A visit is a request that waits for its client to visit URLs. Guarded by legacyServer.mu.
type visit struct {
	in     backend.Inbound // the request as the server gets it again
	rounds int
	open   map[string]bool // the questions without an answer, by their ids
}

// visits reports whether the request waits for its client: the server, which has refused it, does not have it then. legacyServer.mu is held.
func (r *request) visits() bool { return r.visit != nil && len(r.visit.open) > 0 }

// mustVisit asks the client of a request to visit the URLs that an error of the server names.
func (c *legacyServer) mustVisit(rq *request, failure []byte) {
	v := rq.visit
	if v == nil {
		c.sink.Emit(rq.call, newFailure(rq.id, []byte(`{"code":-32021,"message":"the server wants its client to visit a URL, and the client has not declared elicitation.url",`+
			`"data":{"requiredCapabilities":{"elicitation":{"url":{}}}}}`)))
		return
	}
	var questions []jsonrpc.Message
	var urls []json.RawMessage
	if json.Unmarshal(jsonrpc.Field(failure, "data", "elicitations"), &urls) != nil {
		urls = nil
	}
	for _, params := range urls[:min(len(urls), mostQuestions+1)] {
		questions = append(questions, newRequest(c.own.newID(), methodElicit, params))
	}
	c.mu.Lock()
	v.rounds++
	ok := len(questions) > 0 && len(questions) <= mostQuestions && v.rounds <= mostRounds
	if ok {
		for _, q := range questions {
			v.open[key(q.ID)] = true
			c.visits[key(q.ID)] = rq
		}
		c.inFlight[key(rq.wire)] = rq // so that it can be cancelled
	}
	c.mu.Unlock()
	if !ok {
		c.sink.Emit(rq.call, newError(rq.id, jsonrpc.CodeServer, "%s: the server wants its client to visit a URL: %s",
			rq.method, jsonrpc.String(jsonrpc.Field(failure, "message"))))
		return
	}
	for _, q := range questions {
		c.sink.Emit(rq.call, q)
	}
}

// visited takes the client's answer to a question of mustVisit, and reports whether m is
// one. When all questions are answered, the request is made again.
func (c *legacyServer) visited(m jsonrpc.Message) bool {
	c.mu.Lock()
	rq := c.visits[key(m.ID)]
	if rq == nil {
		c.mu.Unlock()
		return false
	}
	delete(c.visits, key(m.ID))
	delete(rq.visit.open, key(m.ID))
	agreed := jsonrpc.String(jsonrpc.Field(m.Result, "action")) == "accept"
	if !agreed {
		c.forget(rq)
	}
	again := agreed && len(rq.visit.open) == 0
	in := rq.visit.in
	if again { // under an id that the server has not seen
		c.forget(rq)
		rq.wire = c.own.newID()
		c.inFlight[key(rq.wire)] = rq
		if rq.ours != "" {
			c.tokens[rq.ours] = rq
		}
		in.Message = newRequest(rq.wire, in.Method, in.Params)
	}
	c.mu.Unlock()
	switch {
	case !agreed:
		c.sink.Emit(rq.call, newError(rq.id, jsonrpc.CodeServer, "%s: the server wants its client to visit a URL, and the client does not", rq.method))
	case again:
		c.out.later(in)
	}
	return true
}
