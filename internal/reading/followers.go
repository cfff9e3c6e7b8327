package reading

import "time"

// This file is for a call that more than one client follows, by its resume token
// (SEP-975). One client reads its stream at a time, and the others come back for it:
// they must find it after the client that has read its end has ended the session.

// FollowFor is how long a client that follows a call may be away from it and still be
// waited for. Over Streamable HTTP it comes back when it is told to; on a connection
// that lives on without the stream, our client asks every fifteen seconds at least.
const FollowFor = 20 * time.Second

// mostFollowed is how many calls of a session may have followers that are waited for.
const mostFollowed = 64

// addFollower notes that a client which is not the stream's reader now may come back for
// it. t.mu is held.
func (t *Streams) addFollower(number uint64) {
	if number == Standalone {
		return
	}
	if len(t.followed.since) >= mostFollowed {
		t.followed.prune(FollowFor)
	}
	if t.followed.has(number) || len(t.followed.since) < mostFollowed {
		t.followed.add(number, FollowFor)
	}
}

// Asked notes that a client asks for a stream by its token. If another client reads the stream, this one may come back for it.
func (t *Streams) Asked(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.streams[number].reader != nil {
		t.addFollower(number)
	}
}

// HasFollowers reports whether a client that was here a short while ago probably has yet to read how a call ended.
func (t *Streams) HasFollowers() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.followed.within(FollowFor)
}
