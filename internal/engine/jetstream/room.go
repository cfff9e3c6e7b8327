package jetstream

import (
	"context"
	"encoding/json"
)

// A sixteenth of a stream's room, mostSpare bytes at most, is only for calls that have
// begun. So are spareDisk bytes of the disk of a server in this process, as other programs
// may fill that disk: once it is full the server stores nothing until there is room again.
const (
	spareShare = 16
	mostSpare  = 256 << 20
	spareDisk  = 32 << 20
)

// Crowded reports whether no more calls should begin: the room that is left is for
// those that run. It is as of the last Ping.
func (l *Log) Crowded() bool { return l.crowded.Load() }

// survey updates crowded. full says that the disk is full. If the servers do not tell how much room
// the stream has, crowded stays as it was.
func (l *Log) survey(ctx context.Context, full bool) {
	if full {
		l.crowded.Store(true)
		return
	}
	var is usage
	if l.ask(ctx, "STREAM.INFO."+l.events, nil, &is) == nil {
		l.crowded.Store(is.crowded())
	}
}

// usage has the size of a stream and its limit, from an answer about it.
type usage struct {
	failure
	Config struct {
		MaxBytes int64 `json:"max_bytes"` // -1: no limit
	} `json:"config"`
	State struct {
		Bytes int64 `json:"bytes"`
	} `json:"state"`
}

func (u *usage) read(answer []byte) error { return json.Unmarshal(answer, u) }

func (u *usage) crowded() bool {
	most := u.Config.MaxBytes
	return most > 0 && u.State.Bytes > most-min(most/spareShare, mostSpare)
}
