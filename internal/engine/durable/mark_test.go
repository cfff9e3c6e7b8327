package durable_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// marks returns the marked sessions that a store finds, as key:owner, with the mark's owner in parentheses if it is another one.
func marks(t *testing.T, st *durable.Store) (found string) {
	t.Helper()
	by := make(map[stream.SessionKey]string)
	var all []string
	err := st.Marked(t.Context(), func(key stream.SessionKey, owner string) bool {
		by[key] = owner
		return true
	}, func(s shared.Session) {
		text := string(s.Key) + ":" + s.Owner
		if by[s.Key] != s.Owner {
			text += "(" + by[s.Key] + ")"
		}
		all = append(all, text)
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// A session is marked from its first call that is stored until its owner, whichever node that is, calls Rest.
func TestMarks(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	a, b := open(t, e, durable.Options{}), open(t, e, durable.Options{})
	t.Cleanup(a.shut)
	t.Cleanup(b.shut)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(text string) {
		t.Helper()
		text = strings.NewReplacer("@a", a.Node(), "@b", b.Node()).Replace(text)
		if got := marks(t, b.Store); got != text {
			t.Fatalf("marked are %q, want %q", got, text)
		}
	}
	entry := func(number, seq uint64, last bool) []stream.Record {
		return []stream.Record{{Number: number, Entry: stream.Entry{Seq: seq, Data: []byte("x"), Last: last}}}
	}
	leases := make(map[stream.SessionKey]stream.Lease)
	for _, key := range []stream.SessionKey{"quiet", "calls", "ended", "short"} {
		lease, err := a.Create(ctx, key, nil)
		must(err)
		leases[key] = lease
		must(a.Append(ctx, lease, []stream.Record{{Number: 0, Note: true, Entry: stream.Entry{Data: []byte("n")}}}))
	}
	want("")
	must(a.Append(ctx, leases["calls"], entry(1, 1, false)))
	must(a.Append(ctx, leases["ended"], []stream.Record{{Number: 1, Note: true, Entry: stream.Entry{Data: []byte("n")}}}))
	must(a.Append(ctx, leases["ended"], entry(1, 1, true)))
	must(a.Append(ctx, leases["short"], entry(1, 1, true))) // the call begins and ends at once, so no node need continue it
	want("calls:@a ended:@a")
	if a.Rests("calls") || !a.Rests("quiet") {
		t.Error("it is not known here which sessions are marked")
	}
	for _, lease := range leases {
		must(a.Rest(ctx, lease))
	}
	want("calls:@a")
	must(a.Append(ctx, leases["ended"], entry(2, 1, false)))
	want("calls:@a ended:@a")
	must(a.Touch(ctx, leases["calls"]))
	want("calls:@a ended:@a")

	// A node that takes a session over marks it as its own. Only the owner that a mark names can remove it.
	was, err := b.Lookup(ctx, "calls")
	must(err)
	taken, err := b.Acquire(ctx, was)
	must(err)
	for end := time.Now().Add(time.Minute); strings.Contains(marks(t, b.Store), "calls:"+b.Node()+"("); {
		if time.Now().After(end) {
			t.Fatal(marks(t, b.Store))
		}
		time.Sleep(time.Millisecond)
	}
	_ = a.Rest(ctx, leases["calls"])
	want("calls:@b ended:@a")
	must(b.Append(ctx, taken.Lease, entry(1, 2, true)))
	must(b.Rest(ctx, taken.Lease))
	want("ended:@a")

	// A session that is given up with calls is marked without an owner.
	must(a.Release(ctx, leases["ended"], true))
	want("ended:")
	was, err = b.Lookup(ctx, "ended")
	must(err)
	taken, err = b.Acquire(ctx, was)
	must(err)
	must(b.Delete(ctx, taken.Session))
	want("")
	must(a.Append(ctx, leases["short"], entry(2, 1, false)))
	must(a.Release(ctx, leases["short"], false))
	want("")

	// The mark of a session that is gone is removed when a node finds it.
	_, err = e.Open().Put(ctx, "w.gone", 0, []byte("x"), time.Hour)
	must(err)
	want("")
	if _, _, _, err := e.Open().Get(ctx, "w.gone"); err == nil {
		t.Error("the mark of a session that is gone is kept")
	}

	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		nodes, err := b.Marking(ctx)
		must(err)
		if maps.Equal(nodes, map[string]bool{a.Node(): true, b.Node(): true}) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("nodes that mark: %v", nodes)
		}
	}
}
