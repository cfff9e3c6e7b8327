package durable

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"holdfast/stream"
)

// formatVersion says how what is in the engine is to be read: it grows when an older version of the program cannot read it, as
// with [recordVersion], [frameVersion] or [claimVersion].
const formatVersion = 1

const (
	formatKey  = "format"
	formatTTL  = 10 * 365 * 24 * time.Hour // a node writes it anew when it opens the engine
	formatTime = 2 * time.Second           // how long it may take
)

// ErrFormat is the error of [CheckFormat] for what a newer version of the program has written.
var ErrFormat = errors.New("a newer version of the program has written to the store")

// CheckFormat returns an [ErrFormat] if this version cannot read what is in an engine. Else it notes there which versions can. An engine
// that does not answer in time is not judged: the store's user finds that out.
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
	_, _ = log.Put(ctx, formatKey, was, binary.AppendUvarint(nil, formatVersion), formatTTL) // or another node has
	return nil
}
