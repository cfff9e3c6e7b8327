package client

import (
	"errors"

	"holdfast/jsonrpc"
)

// Unreadable implements [rpc.Request].
func (k *call) Unreadable(err error) {
	if own, ok := errors.AsType[*jsonrpc.Error](err); ok {
		err = &refusal{rpc: own, text: own.Message}
	} else {
		err = &unknownOutcome{err}
	}
	k.fail(err)
	k.cancel(nil)
}
