package durable

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"holdfast/stream"
)

// formatVersion is the version of the data in an engine: it grows when an older version of the program cannot read them, as
// with [recordVersion], [frameVersion] or [claimVersion].
const formatVersion = 1

const (
	formatKey  = "format"
	formatTTL  = 10 * 365 * 24 * time.Hour // a node writes it anew when it opens the engine
	formatTime = 2 * time.Second           // how long CheckFormat may take
)

// ErrFormat is the error of [CheckFormat] if a newer version of the program has written to the engine.
var ErrFormat = errors.New("a newer version of the program has written to the store")

// CheckFormat returns an [ErrFormat] if this version cannot read the data in an engine. Else it notes there which versions can. It
// returns nil if the engine does not answer in time: later requests will tell.
func CheckFormat(ctx context.Context, log Log) error {
	ctx, stop := context.WithTimeout(ctx, formatTime)
	defer stop()
	value, was, _, err := log.Get(ctx, formatKey)
	if err != nil && !errors.Is(err, stream.ErrNotFound) {
		return nil
	}
	if err == nil {
		if is, n := binary.Uvarint(value); n <= 0 || is > formatVersion {
			return fmt.Errorf("%w: its format is %d, and this version reads up to %d: use that version, or another store", ErrFormat, is, formatVersion)
		}
	}
	_, _ = log.Put(ctx, formatKey, was, binary.AppendUvarint(nil, formatVersion), formatTTL) // an error: another node has written it, or will
	return nil
}
