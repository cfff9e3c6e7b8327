package client

import (
	"encoding/json"
	"errors"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file is about subscriptions/listen, a request that is answered with a stream of
// notifications without end (2026-07-28, Subscriptions). When its connection ends without the
// response, it is opened again, under the same id, for as long as the server can't be
// reached. The host does not see that. As the lists and resources that it listens to may have
// changed meanwhile, it gets a notification for each.

// endless is longer than any outage.
const endless = 1 << 62

// subscribes reports whether the call is a subscription.
func (k *call) subscribes() bool { return k.isModern() && k.method == protocol.MethodSubscriptions }

// retrySubscription waits before a subscription that the server has accepted is opened again.
// It reports false if [call.retry] decides about err.
func (k *call) retrySubscription(err error) (waited bool, ended error) {
	if !k.accepted {
		return false, nil
	}
	var no *refusal
	switch {
	case errors.As(err, &no) && !no.passes() && no.instead == nil:
		return false, nil
	case no != nil:
		k.backoff.atLeast = min(no.after, k.c.opts.GiveUp)
	case errors.Is(err, errCut):
		err = nil
	}
	return true, k.backoff.waitFor(k.ctx, err, endless)
}

// acknowledged handles the notification with which a subscription begins. It reports whether to
// pass it to the host: only the first. With a later one it tells the host what may have changed.
func (k *call) acknowledged(m jsonrpc.Message) bool {
	if !k.accepted {
		k.accepted = true
		k.backoff.idle = func() bool { return true }
		return true
	}
	var filter struct {
		Tools     bool     `json:"toolsListChanged"`
		Prompts   bool     `json:"promptsListChanged"`
		Resources bool     `json:"resourcesListChanged"`
		URIs      []string `json:"resourceSubscriptions"`
	}
	if json.Unmarshal(jsonrpc.Field(m.Params, "notifications"), &filter) != nil {
		return false
	}
	for method, wanted := range map[string]bool{
		protocol.MethodToolsListChanged: filter.Tools, protocol.MethodPromptsListChanged: filter.Prompts,
		protocol.MethodResourcesListChanged: filter.Resources,
	} {
		if wanted {
			k.mayHaveChanged(method, []byte(`{}`))
		}
	}
	for _, uri := range filter.URIs {
		k.mayHaveChanged(protocol.MethodResourceUpdated, jsonrpc.Object("uri", uri))
	}
	return false
}

// mayHaveChanged gives the host a notification of the subscription.
func (k *call) mayHaveChanged(method string, params []byte) {
	params, _ = jsonrpc.Set(params, k.id, "_meta", protocol.MetaSubscriptionID)
	if m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, nil, method, params)); err == nil {
		k.c.deliver(k, m)
	}
}
