package durable

import (
	"context"
	"encoding/base64"
	"errors"
	"time"

	"holdfast/stream"
)

// This file keeps values for all nodes, under names of any bytes: beside sessions, and for longer than these.

func valueKey(name string) string { return "v." + base64.RawURLEncoding.EncodeToString([]byte(name)) }

// FirstValue keeps a value under a name for ttl, unless it has one, and returns the kept value.
func (st *Store) FirstValue(ctx context.Context, name string, value []byte, ttl time.Duration) (is []byte, err error) {
	err = st.ask(ctx, func(ctx context.Context) error {
		for {
			_, err := st.log.Put(ctx, valueKey(name), 0, value, ttl)
			if is = value; !errors.Is(err, stream.ErrConflict) {
				return err
			}
			is, _, _, err = st.log.Get(ctx, valueKey(name))
			if !errors.Is(err, stream.ErrNotFound) { // else the value has expired just now
				return err
			}
		}
	})
	if err == nil {
		err = st.Sync(ctx)
	}
	return is, err
}

// SetValue keeps a value under a name for ttl, in place of an older value.
func (st *Store) SetValue(ctx context.Context, name string, value []byte, ttl time.Duration) error {
	err := st.ask(ctx, func(ctx context.Context) error {
		for {
			_, version, _, err := st.log.Get(ctx, valueKey(name))
			if err != nil && !errors.Is(err, stream.ErrNotFound) {
				return err
			}
			if _, err = st.log.Put(ctx, valueKey(name), version, value, ttl); !errors.Is(err, stream.ErrConflict) {
				return err
			}
		}
	})
	if err == nil {
		err = st.Sync(ctx)
	}
	return err
}

// Value returns the value under a name. The error is [stream.ErrNotFound] if there is no value.
func (st *Store) Value(ctx context.Context, name string) (value []byte, err error) {
	err = st.ask(ctx, func(ctx context.Context) error {
		value, _, _, err = st.log.Get(ctx, valueKey(name))
		return err
	})
	return value, err
}
