package revival_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"holdfast/internal/revival"
	"holdfast/internal/sessionid"
	"holdfast/stream"
)

// values are the values of a store.
type values struct {
	mu  sync.Mutex
	all map[string][]byte
}

func (v *values) FirstValue(_ context.Context, name string, value []byte, _ time.Duration) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if is, ok := v.all[name]; ok {
		return is, nil
	}
	v.all[name] = value
	return value, nil
}

func (v *values) SetValue(_ context.Context, name string, value []byte, _ time.Duration) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all[name] = value
	return nil
}

func (v *values) Value(_ context.Context, name string) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if is, ok := v.all[name]; ok {
		return is, nil
	}
	return nil, stream.ErrNotFound
}

func sealed(t *testing.T, k *revival.Keeper) string {
	t.Helper()
	id, err := k.Seal(t.Context(), &sessionid.Claims{Began: time.Now(), Initialize: []byte(`{"protocolVersion":"2025-11-25"}`)})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func opens(t *testing.T, k *revival.Keeper, id string) bool {
	t.Helper()
	_, ok, err := k.Open(t.Context(), id)
	if err != nil {
		t.Error(err)
	}
	return ok
}

func isEnded(t *testing.T, k *revival.Keeper, key stream.SessionKey, began time.Time) bool {
	t.Helper()
	ended, err := k.IsEnded(t.Context(), key, began)
	if err != nil {
		t.Error(err)
	}
	return ended
}

// Nodes with the same store, and successive processes with the same directory, open each other's ids, and know the ended
// sessions. Other nodes do not.
func TestShared(t *testing.T) {
	t.Parallel()
	store, dir := &values{all: map[string][]byte{}}, filepath.Join(t.TempDir(), "serve", "a")
	for what, o := range map[string]revival.Options{
		"a store":     {Life: time.Hour, Values: store},
		"a directory": {Life: time.Hour, Dir: dir},
		"keys":        {Life: time.Hour, Keys: []sessionid.Key{{1}}, Dir: filepath.Join(t.TempDir(), "b")},
	} {
		one, two := revival.New(o), revival.New(o)
		id := sealed(t, one)
		if !opens(t, two, id) {
			t.Errorf("%s: the other does not open an id", what)
		}
		if opens(t, revival.New(revival.Options{Life: time.Hour}), id) {
			t.Errorf("%s: a stranger opens an id", what)
		}
		if isEnded(t, two, "k", time.Now()) {
			t.Errorf("%s: a session is ended before it was", what)
		}
		if err := one.End(t.Context(), "k", time.Now()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for name, k := range map[string]*revival.Keeper{"the same": one, "the other": two, "a later one": revival.New(o)} {
			if !isEnded(t, k, "k", time.Now()) || isEnded(t, k, "l", time.Now()) {
				t.Errorf("%s: %s does not know what was ended", what, name)
			}
		}
	}
	for _, name := range []string{"session-keys", "sessions-ended"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// When the store has lost the keys, they are written again. If another node was faster, its keys seal from then on.
func TestKeysLost(t *testing.T) {
	t.Parallel()
	store := &values{all: map[string][]byte{}}
	one := revival.New(revival.Options{Life: time.Hour, Values: store})
	before := sealed(t, one)
	clear(store.all)
	if err := one.Tend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !opens(t, revival.New(revival.Options{Life: time.Hour, Values: store}), before) {
		t.Error("an id of before is not opened by a new node")
	}
	clear(store.all)
	two := revival.New(revival.Options{Life: time.Hour, Values: store})
	theirs := sealed(t, two)
	if err := one.Tend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := two.Tend(t.Context()); err != nil {
		t.Fatal(err)
	}
	three := revival.New(revival.Options{Life: time.Hour, Values: store})
	for i, k := range []*revival.Keeper{one, two, three} {
		if !opens(t, k, theirs) || !opens(t, k, before) || !opens(t, k, sealed(t, one)) {
			t.Errorf("node %d does not open all ids", i)
		}
	}
	if err := one.End(t.Context(), "k", time.Now()); err != nil {
		t.Fatal(err)
	}
	clear(store.all)
	if err := one.Tend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !isEnded(t, two, "k", time.Now()) {
		t.Error("what was ended is forgotten with the store")
	}
}

// An ended session is never revived, however many sessions ended since. A session that began later than these can be revived.
func TestManyEnded(t *testing.T) {
	t.Parallel()
	o := revival.Options{Life: 30 * 24 * time.Hour, Keys: []sessionid.Key{{1}}}
	k := revival.New(o)
	begin := time.Now().Add(-20 * 24 * time.Hour)
	const many = 120_000
	for i := range many {
		if err := k.End(t.Context(), stream.SessionKey(fmt.Sprint(i)), begin.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; i < many; i += 997 {
		if !isEnded(t, k, stream.SessionKey(fmt.Sprint(i)), begin.Add(time.Duration(i)*time.Second)) {
			t.Fatalf("session %d is revived", i)
		}
	}
	if isEnded(t, k, "another", begin.Add(many*time.Second)) {
		t.Error("a session is ended that began after all of them")
	}
	if !isEnded(t, k, "another", begin) {
		t.Error("a session is revived that began before more were ended than are remembered")
	}
}

// A session that was refused just now is not revived, however many others were refused before it.
func TestManyRefused(t *testing.T) {
	t.Parallel()
	k := revival.New(revival.Options{Life: time.Hour, Keys: []sessionid.Key{{1}}})
	for i := range 10_000 {
		k.Refuse(stream.SessionKey(fmt.Sprint(i)))
		for _, n := range []int{i, max(0, i-1000)} {
			if !isEnded(t, k, stream.SessionKey(fmt.Sprint(n)), time.Now()) {
				t.Fatalf("of %d sessions that were refused, number %d is revived", i, n)
			}
		}
	}
}

// If a directory cannot be used, sessions are revived while the process lives.
func TestNoDirectory(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	k := revival.New(revival.Options{Life: time.Hour, Dir: filepath.Join(file, "in")})
	if id := sealed(t, k); !opens(t, k, id) {
		t.Error("an id is not opened")
	}
	if err := k.End(t.Context(), "k", time.Now()); err != nil || !isEnded(t, k, "k", time.Now()) {
		t.Errorf("ended: %v", err)
	}
}

// Two processes that share a directory, and each rewrite the list of ended sessions when many entries have expired, lose no entry.
func TestSharedDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := revival.Options{Life: time.Hour, Dir: dir}
	one, two := revival.New(o), revival.New(o)
	now := time.Now()
	if err := two.End(t.Context(), "first", now); err != nil || !isEnded(t, two, "first", now) {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "sessions-ended")
	f, err := os.OpenFile(list, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1500 { // these have expired, so that the next look rewrites the list
		fmt.Fprintf(f, "%d old%d\n", now.Add(-2*time.Hour).Unix(), i)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(list)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	const many = 200
	for i := range many {
		work.Go(func() {
			k := []*revival.Keeper{one, two}[i%2]
			if err := k.End(t.Context(), stream.SessionKey(fmt.Sprintf("new%d", i)), now); err != nil {
				t.Error(err)
			}
			isEnded(t, one, "other", now)
		})
	}
	work.Wait()
	if after, err := os.Stat(list); err != nil || after.Size() >= before.Size() {
		t.Fatalf("the list was not written anew: %v", err)
	}
	for name, k := range map[string]*revival.Keeper{"one": one, "the other": two, "a later one": revival.New(o)} {
		for i := range many {
			if !isEnded(t, k, stream.SessionKey(fmt.Sprintf("new%d", i)), now) {
				t.Errorf("%s does not know what was ended", name)
				break
			}
		}
		if !isEnded(t, k, "first", now) {
			t.Errorf("%s does not know what was ended first", name)
		}
	}
}
