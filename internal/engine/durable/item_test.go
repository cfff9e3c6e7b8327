package durable_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/stream"
)

// An item can be changed by a node that knows its version, and every node finds it.
func TestItems(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	a, b := open(t, e, durable.Options{}), open(t, e, durable.Options{})
	defer a.shut()
	defer b.shut()
	ctx := t.Context()
	first, err := a.PutItem(ctx, "msg_1", 0, []byte("one"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := a.PutItem(ctx, "msg_1", 0, []byte("one"), time.Hour); err != nil || again != first {
		t.Errorf("put again, as when the answer is lost: %d, %v", again, err)
	}
	if _, err := b.PutItem(ctx, "msg_1", 0, []byte("mine"), time.Hour); !errors.Is(err, stream.ErrConflict) {
		t.Errorf("put over another: %v", err)
	}
	value, version, age, err := b.Item(ctx, "msg_1")
	if string(value) != "one" || version != first || age < 0 || age > time.Hour || err != nil {
		t.Errorf("got %q, %d, %v, %v", value, version, age, err)
	}
	second, err := b.PutItem(ctx, "msg_1", version, []byte("two"), time.Hour)
	if err != nil {
		t.Error(err)
	}
	if err := a.RemoveItem(ctx, "msg_1", first); !errors.Is(err, stream.ErrConflict) {
		t.Errorf("removed what another has changed: %v", err)
	}
	if _, err := a.PutItem(ctx, "msg_2", 0, []byte("other"), time.Hour); err != nil {
		t.Error(err)
	}
	a.create("S")
	if _, err := a.FirstValue(ctx, "v", []byte("value"), time.Hour); err != nil {
		t.Error(err)
	}
	all := map[string]string{}
	if err := a.Items(ctx, func(name string, value []byte) bool { all[name] = string(value); return true }); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(all); got != "map[msg_1:two msg_2:other]" {
		t.Errorf("listed %s", got)
	}
	if err := b.RemoveItem(ctx, "msg_1", second); err != nil {
		t.Error(err)
	}
	if err := a.RemoveItem(ctx, "msg_1", 0); err != nil {
		t.Errorf("removing nothing: %v", err)
	}
	if _, _, _, err := a.Item(ctx, "msg_1"); !errors.Is(err, stream.ErrNotFound) {
		t.Errorf("what was removed: %v", err)
	}
	if _, err := a.PutItem(ctx, "a b", 0, []byte("x"), time.Hour); err == nil {
		t.Error("a name that no engine can keep was taken")
	}
}
