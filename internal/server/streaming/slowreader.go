package streaming

import (
	"errors"
	"time"

	"holdfast/stream"
)

// Detach detaches from the streams, after the copying has ended with err.
func (c *Events) Detach(err error) {
	broke := err != nil && !errors.Is(err, ErrSuperseded) && !errors.Is(err, ErrComeBack)
	if broke {
		c.Session.Streams().Disconnected(c.From, time.Now().Add(-justBefore))
	}
	c.Reader.Detach(broke && c.state != delivered, c.shown.any(), false)
	if c.continued != nil {
		c.continued.detach(err != nil)
	}
	if errors.Is(err, stream.ErrTrimmed) {
		c.of.Logger.Warn("slow reader: what it missed is no longer kept", "session", c.Session.Name())
	}
}
