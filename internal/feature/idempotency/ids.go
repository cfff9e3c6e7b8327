package idempotency

import (
	"crypto/sha256"
	"encoding/binary"

	"holdfast/stream"
)

// An ID is an idempotency key together with its scope.
type ID [sha256.Size]byte

// A Sum stands for a request. It is short: only a client itself could gain by making two of its
// requests collide.
type Sum [16]byte

// SumOf returns the sum of a request's body.
func SumOf(body []byte) Sum {
	sum := sha256.Sum256(body)
	return Sum(sum[:16])
}

// A Scope is the owner of keys: the same text in another scope is another key.
type Scope struct {
	kind byte
	of   string
}

// OfPrincipal returns the scope of a named principal, in all its sessions.
func OfPrincipal(text string) Scope { return Scope{'p', text} }

// OfSession returns the scope of a session with an anonymous client.
func OfSession(session stream.SessionKey) Scope { return Scope{'s', string(session)} }

// OfCredential returns the scope of clients without a name or a session that have the same
// credential, at a server. The server's name has no NUL.
func OfCredential(server string, credential []byte) Scope {
	return Scope{'c', server + "\x00" + string(credential)}
}

// OfTenant returns the scope of a tenant's clients that have no credential either, at a server.
func OfTenant(server, tenant string) Scope { return Scope{'t', server + "\x00" + tenant} }

// KeyID names a key in a scope.
func KeyID(scope Scope, key string) ID {
	text := append(make([]byte, 0, 128), scope.kind)
	text = binary.BigEndian.AppendUint64(text, uint64(len(scope.of)))
	return sha256.Sum256(append(append(text, scope.of...), key...))
}

// TwinID names a key with a request that is made under it, in a scope. It is the same for the same
// request that is made under the same key with another credential.
func TwinID(scope Scope, key string, sum Sum) ID {
	text := append(make([]byte, 0, 128), 'w', scope.kind)
	text = binary.BigEndian.AppendUint64(text, uint64(len(scope.of)))
	text = append(append(text, scope.of...), sum[:]...)
	return sha256.Sum256(append(text, key...))
}

// ForwardID names a POST to the session that another node has forwarded under a name, however often
// it arrives. No client's key has the same ID.
func ForwardID(session stream.SessionKey, name string) ID {
	text := append(make([]byte, 0, 128), 'o')
	text = append(append(text, session...), 0)
	return sha256.Sum256(append(text, name...))
}
