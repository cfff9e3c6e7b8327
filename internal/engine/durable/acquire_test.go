package durable_test

import (
	"testing"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/stream"
)

// A node that acquires a session which it has looked up does not read the record again, also
// if the owner has renewed it since. It gets a conflict if the session has another owner.
func TestAcquireSeen(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	a, b, c := open(t, e, durable.Options{}), open(t, e, durable.Options{}), open(t, e, durable.Options{})
	defer a.shut()
	defer b.shut()
	defer c.shut()
	lease := a.create("a")
	was, err := b.Lookup(t.Context(), "a")
	b.want("Lookup", err, nil)
	other, err := c.Lookup(t.Context(), "a")
	c.want("Lookup", err, nil)
	before := e.Count("Get")
	taken, err := b.Acquire(t.Context(), was)
	b.want("Acquire", err, nil)
	if n := e.Count("Get") - before; n != 0 {
		t.Errorf("the record was read %d times more", n)
	}
	a.want("append of the old owner", a.put(lease, entry(1, 1)), stream.ErrFenced)
	_, err = c.Acquire(t.Context(), other)
	c.want("Acquire of what another has taken", err, stream.ErrConflict)

	was, err = c.Lookup(t.Context(), "a")
	c.want("Lookup", err, nil)
	b.want("Touch", b.Touch(t.Context(), taken.Lease), nil)
	again, err := c.Acquire(t.Context(), was)
	c.want("Acquire after the owner has renewed it", err, nil)
	if again.Epoch != taken.Epoch+1 {
		t.Errorf("epoch %d after %d", again.Epoch, taken.Epoch)
	}
	was, err = b.Lookup(t.Context(), "a")
	b.want("Lookup", err, nil)
	c.want("Delete", c.Delete(t.Context(), "a"), nil)
	_, err = b.Acquire(t.Context(), was)
	b.want("Acquire of what was deleted", err, stream.ErrNotFound)
	a.create("a")
	_, err = b.Acquire(t.Context(), was)
	b.want("Acquire of an earlier session of the key", err, stream.ErrConflict)
}
