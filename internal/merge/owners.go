package merge

import (
	"strings"

	"holdfast/internal/budget"
	"holdfast/internal/protocol"
)

// The memory of a conversation is bounded: it only saves asking all servers.
const (
	mostOwners     = 10_000 // resources that are remembered with their servers
	mostOwnerBytes = 1 << 20
	ownerCost      = 96 // bytes that a resource takes beside its URI

	mostSubscriptions = 1000 // that a server is told again when it is opened again
)

// owners has the servers of resources, by the resources' URIs, as far as they are remembered.
type owners struct {
	of   map[string]*link
	held int64 // bytes, as they are counted
}

// put notes the server of a resource, if there is room.
func (o *owners) put(uri string, l *link, account budget.Account) {
	n := int64(len(uri)) + ownerCost
	if len(uri) > protocol.MaxURI {
		return
	}
	if len(o.of) >= mostOwners || o.held+n > mostOwnerBytes {
		_ = account.Hold(-o.held) // giving back always succeeds
		o.of, o.held = nil, 0
	}
	if account.Hold(n) != nil {
		return
	}
	if o.of == nil {
		o.of = make(map[string]*link)
	}
	if _, known := o.of[uri]; known { // of a server that is a member no longer
		_ = account.Hold(-n)
		n = 0
	}
	o.of[strings.Clone(uri)] = l
	o.held += n
}
