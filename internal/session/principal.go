package session

import "strings"

// A handler may have many servers. A session, a carrier and a call belong to one of them by
// its name, like to a principal, and so the name is a part of the principal: it is on
// record, in what nodes tell each other, and checked, wherever the principal is. The id of
// one server's session is unknown at another. See docs/decisions/0025-many-servers.md.

// PrincipalAt returns the principal of clients of a server. server is its name, which has no
// NUL, or "" where there is one server only; then the principal is returned unchanged. name
// is who the client is, or "" for nobody in particular.
func PrincipalAt(server, name string) string {
	if server == "" && !strings.HasPrefix(name, "\x00") { // which a name may, as it may be any bytes
		return name
	}
	return "\x00" + server + "\x00" + name
}

// SplitPrincipal returns what [PrincipalAt] has put together.
func SplitPrincipal(principal string) (server, name string) {
	rest, ok := strings.CutPrefix(principal, "\x00")
	if !ok {
		return "", principal
	}
	server, name, _ = strings.Cut(rest, "\x00")
	return server, name
}

// IsAnonymous reports whether a principal is nobody in particular.
func IsAnonymous(principal string) bool {
	if principal == "" {
		return true
	}
	_, name := SplitPrincipal(principal)
	return name == ""
}

// Server returns the name of the server that the session belongs to, or "" where there is
// one server only.
func (s *Session) Server() string {
	server, _ := SplitPrincipal(s.principal)
	return server
}

// Principal returns who the session's client is, or "" for nobody in particular.
func (s *Session) Principal() string {
	_, name := SplitPrincipal(s.principal)
	return name
}
