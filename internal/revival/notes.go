package revival

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"holdfast/stream"
)

// This file keeps notes: data of sleeping sessions that their ids do not have. They are in the store, or, if nodes share none, in memory.

// mostNotes bounds how many notes are kept in memory. If there are so many, those that have expired are looked for every sweepEvery.
const (
	mostNotes  = 100_000
	sweepEvery = time.Minute
)

// kept is a note in memory.
type kept struct {
	note  []byte
	until time.Time // after that, its session cannot be revived
}

// ErrNoRoom says that there are too many notes.
var ErrNoRoom = errors.New("too many notes of sessions are kept in memory")

func noteName(key stream.SessionKey) string { return "session-note." + string(key) }

// Note keeps a note of a session that began at a time, in place of its last note, for as long as the session can be revived. An
// empty note removes it.
func (k *Keeper) Note(ctx context.Context, key stream.SessionKey, began time.Time, note []byte) error {
	if k.o.Values == nil {
		k.notes.Lock()
		defer k.notes.Unlock()
		if len(note) == 0 {
			delete(k.notes.all, key)
			return nil
		}
		if _, has := k.notes.all[key]; !has && !k.hasRoom() {
			return ErrNoRoom
		}
		if k.notes.all == nil {
			k.notes.all = make(map[stream.SessionKey]kept)
		}
		k.notes.all[key] = kept{bytes.Clone(note), began.Add(k.o.Life)}
		return nil
	}
	rest := max(k.Rest(began), time.Second)
	if len(note) == 0 {
		rest = time.Second
	}
	if err := k.o.Values.SetValue(ctx, noteName(key), note, rest); err != nil {
		return fmt.Errorf("session not noted: %w", err)
	}
	return nil
}

// hasRoom reports whether there is room for another note. It forgets the notes of sessions that can be revived no more, if there is none
// without that. k.notes is locked.
func (k *Keeper) hasRoom() bool {
	if now := time.Now(); len(k.notes.all) >= mostNotes && now.Sub(k.notes.swept) >= sweepEvery {
		k.notes.swept = now
		maps.DeleteFunc(k.notes.all, func(_ stream.SessionKey, one kept) bool { return now.After(one.until) })
	}
	return len(k.notes.all) < mostNotes
}

// Noted returns the note of a session, or nil.
func (k *Keeper) Noted(ctx context.Context, key stream.SessionKey) ([]byte, error) {
	if k.o.Values == nil {
		k.notes.Lock()
		defer k.notes.Unlock()
		return k.notes.all[key].note, nil
	}
	note, err := k.o.Values.Value(ctx, noteName(key))
	switch {
	case errors.Is(err, stream.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("note of a session not read: %w", err)
	}
	return note, nil
}
