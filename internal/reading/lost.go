package reading

import (
	"context"
	"time"

	"holdfast/stream"
)

// Lost returns where to continue the streams that the client has lost, and can only
// hear of on the standalone stream: it has asked for them, now or before, with nothing
// but its session, or it has not come back for them. A stream with event ids that were
// written to the client is returned after patience: the client may be about to come
// back with an id. due is when the next stream will be returned, or zero.
// [Reader.LostChanged] of the standalone stream's reader says when to call it again.
func (t *Streams) Lost(ctx context.Context, patience time.Duration) (at []stream.Cursor, due time.Time) {
	lost, due := t.due(patience)
	for _, b := range lost {
		one := stream.Cursor{Stream: t.id(b.number), Seq: b.seq}
		if b.kind == gapPartial && b.asked.IsZero() {
			one = t.pastOld(ctx, one, b.told)
		}
		at = append(at, one)
	}
	return at, due
}
