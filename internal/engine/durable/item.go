package durable

import (
	"bytes"
	"context"
	"errors"
	"time"

	"holdfast/stream"
)

// This file keeps items: values that all nodes can list, and that one node at a time changes.

const itemPrefix = "o."

// PutItem keeps an item of a node under a name (A-Z a-z 0-9 - _) for ttl, if its version is still was; 0: there is no such item.
// Else the error is [stream.ErrConflict]. The values of two puts must differ, or one put may be taken for the other.
func (st *Store) PutItem(ctx context.Context, name string, was uint64, value []byte, ttl time.Duration) (version uint64, err error) {
	if err := checkKey(stream.SessionKey(name)); err != nil {
		return 0, err
	}
	err = st.ask(ctx, func(ctx context.Context) error {
		version, err = st.log.Put(ctx, itemPrefix+name, was, value, ttl)
		if !errors.Is(err, stream.ErrConflict) {
			return err
		}
		is, at, _, getErr := st.log.Get(ctx, itemPrefix+name)
		switch {
		case getErr == nil && bytes.Equal(is, value): // put by an attempt that seemed to fail
			version = at
			return nil
		case getErr != nil && !errors.Is(getErr, stream.ErrNotFound):
			return getErr
		}
		return err
	})
	if err == nil {
		err = st.Sync(ctx)
	}
	return version, err
}

// Item returns the item under a name, its version, and how long ago it was put, by the engine's clock. The error is
// [stream.ErrNotFound] if there is no item.
func (st *Store) Item(ctx context.Context, name string) (value []byte, version uint64, age time.Duration, err error) {
	err = st.ask(ctx, func(ctx context.Context) error {
		value, version, age, err = st.log.Get(ctx, itemPrefix+name)
		return err
	})
	return value, version, max(age, 0), err
}

// RemoveItem removes the item under a name if its version is still was; 0: whichever it has. [stream.ErrConflict]: it has another.
// It is no error if there is no item.
func (st *Store) RemoveItem(ctx context.Context, name string, was uint64) error {
	return st.ask(ctx, func(ctx context.Context) error { return st.log.Remove(ctx, itemPrefix+name, was) })
}

// Items calls yield with all items, in no order, until it returns false. An item that was changed or removed just before may
// come in its older state.
func (st *Store) Items(ctx context.Context, yield func(name string, value []byte) bool) error {
	return st.log.List(ctx, itemPrefix, func(key string, value []byte, _ uint64) bool { return yield(key[len(itemPrefix):], value) })
}
