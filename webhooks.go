package holdfast

import (
	"context"
	"errors"
	"time"

	"holdfast/internal/feature/webhook"
	"holdfast/internal/observe"
	sender "holdfast/internal/webhook"
)

// startWebhooks returns a function that sends the webhook of a request, or nil if webhooks are
// disabled.
func (h *Handler) startWebhooks(o *Options, observers observe.Observers) func(webhook.Ended) (told bool) {
	if o.Webhooks == nil || o.Stateless {
		return nil
	}
	opts := *o.Webhooks
	if opts.Logger == nil {
		opts.Logger = o.Logger
	}
	h.webhooks = sender.New(opts)
	if observers != nil {
		h.webhooks.Observe(func(result string) { observers.Happened(observe.WebhookTried{Result: result}) })
	}
	if store, ok := o.Store.(interface {
		sender.Outbox
		Node() string
	}); ok {
		h.webhooks.Keep(store, store.Node())
	} else {
		opts.Logger.Info("webhooks that wait to be sent do not survive this process, as its store is in memory: give a store that does (--store, Options.Store)")
	}
	return func(e webhook.Ended) bool {
		return h.webhooks.Send(sender.Event{URL: e.Webhook, RequestID: e.ID, Failed: e.Failed, Time: e.Time, Key: e.Key})
	}
}

// attendWebhooks sends the webhooks that lost nodes have left.
func (h *Handler) attendWebhooks(o *Options) {
	if h.webhooks != nil && h.node != nil && o.Role != RoleDoor {
		h.webhooks.Attend(h.node)
	}
}

// webhookGrace is how long webhooks of calls that were cut short are tried.
const webhookGrace = 2 * time.Second

// closeWebhooks ends the sender of webhooks.
func (h *Handler) closeWebhooks(ctx context.Context) error {
	if h.webhooks == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		// The outcomes of the calls that were cut short are not known before now.
		late, stop := context.WithTimeout(context.WithoutCancel(ctx), webhookGrace)
		defer stop()
		ctx = late
	}
	return h.webhooks.Close(ctx)
}
