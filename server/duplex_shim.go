package server

import "holdfast/session"

// Until package session has them.

func wantsIDs(s *session.Session) bool {
	x, ok := any(s).(interface{ EventIDs() bool })
	return ok && x.EventIDs()
}

func resumable(s *session.Session) bool {
	x, ok := any(s).(interface{ Resumable() bool })
	return ok && x.Resumable()
}
