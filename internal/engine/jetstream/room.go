package jetstream

import (
	"context"
	"encoding/json"
)

// Of a stream's room a sixteenth is for what has begun, or so much; and so much of a
// disk of ours, which others may fill: once it is full the server stores nothing until
// there is room again.
const (
	spareShare = 16
	mostSpare  = 256 << 20
	spareDisk  = 32 << 20
)

// Crowded reports whether nothing more should begin: what room is left is for what runs
// to be told to its end. It is as of the last Ping.
func (l *Log) Crowded() bool { return l.crowded.Load() }

// survey looks how much room there is, beside a disk that is full. Where that can't be learned it is
// as it was.
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

// usage is what an answer about a stream says of its size.
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
