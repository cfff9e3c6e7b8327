package client

import "time"

// A keepAliveReader reads a response, and notes that the server sends keep-alives: then more
// of them will come, and silence means a dead connection.
type keepAliveReader struct {
	r       *response
	silence time.Duration
	reads   int
	seen    bool // the server sends keep-alives
}

// Read implements io.Reader.
func (k *keepAliveReader) Read(p []byte) (int, error) {
	n, err := k.r.Read(p)
	k.reads++
	// The first bytes may come with the header; what comes after that and is no
	// event is a keep-alive.
	if n > 0 && k.reads > 1 && p[0] == ':' && !k.seen {
		k.seen = true
		if k.r.quiet == 0 || k.r.quiet > k.silence {
			k.r.expect(k.silence)
		}
	}
	return n, err
}
