package holdfast

import (
	"holdfast/backend"
	"holdfast/internal/limit"
)

// limiter returns the limiter of Options.Limits, and of the limits of the backend's servers, if it
// has several; nil without limits.
func limiter(o *Options, b backend.Backend) *limit.Limiter {
	servers, _ := b.(limit.Servers)
	return limit.New(limit.Policy{
		Rate:        limit.Rate{PerSecond: o.Limits.Rate, Burst: o.Limits.Burst},
		AddressRate: limit.Rate{PerSecond: o.Limits.AddressRate, Burst: o.Limits.AddressBurst},
		ClientCalls: o.Limits.Calls,
		ToolCalls:   o.Limits.ToolCalls,
		Queue:       o.Limits.Queue,
		QueueWait:   o.Limits.QueueWait,
		Share:       o.MaxShare,
		Servers:     servers,
	})
}
