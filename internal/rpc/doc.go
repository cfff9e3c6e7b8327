// Package rpc has the parts of a conversation with a server that all transports share: ids of requests of our own,
// messages that break JSON or JSON-RPC a little, and the end of a call if its answer cannot be read.
package rpc
