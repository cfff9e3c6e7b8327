// Package rpc has what a conversation with a server needs beside its messages, whatever transport carries them: ids of
// requests of our own, messages that break JSON or JSON-RPC a little, and what becomes of a call whose answer
// cannot be read.
package rpc
