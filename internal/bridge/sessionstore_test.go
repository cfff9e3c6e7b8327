package bridge

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
)

// storeIn returns a store, as if opened in another process.
func storeIn(t *testing.T, dir string) *store {
	t.Helper()
	s := newStore(dir, "http://example.com/mcp", "auto", nil)
	t.Cleanup(s.close)
	return s
}

// openStore opens a store, and takes the session of a host.
func openStore(t *testing.T, dir, opener string) (*store, *sessionRecord) {
	t.Helper()
	s := storeIn(t, dir)
	old := mcptest.Must(s.open(fingerprint{Old: opener}))(t)
	return s, old
}

// keepSession keeps a session, as by a process that ends afterwards.
func keepSession(t *testing.T, dir, opener string, alive time.Time, calls ...callRecord) {
	t.Helper()
	s, _ := openStore(t, dir, "no host's")
	saveRecord(t, s, &sessionRecord{fingerprint: fingerprint{Old: opener}, Alive: alive, Calls: calls})
	s.close()
}

func saveRecord(t *testing.T, s *store, r *sessionRecord) {
	t.Helper()
	r.Conn = client.State{Result: json.RawMessage(`{}`)}
	mcptest.Check(t, s.save(func() *sessionRecord { return r }))
}

func callOf(id, request string) callRecord {
	return callRecord{ID: json.RawMessage(id), fingerprint: fingerprint{Old: request}, Place: &client.CallState{ID: json.RawMessage(id)}}
}

// recordOf returns a function that returns a record of the host "host", as [store.save] wants it.
func recordOf(calls ...callRecord) func() *sessionRecord {
	return func() *sessionRecord {
		return &sessionRecord{
			fingerprint: fingerprint{Old: "host"}, Alive: time.Now(), Calls: slices.Clone(calls), Conn: client.State{Result: json.RawMessage(`{}`)},
		}
	}
}

// takeOver takes over the call "again" of the host "host", as a process does. It returns the
// call's id, or "".
func takeOver(t *testing.T, s *store) string {
	t.Helper()
	c := s.takeOverForeign(t.Context(), fingerprint{Old: "host"}, func(c *callRecord) bool { return c.matches(fingerprint{Old: "again"}) })
	if c == nil {
		return ""
	}
	if n := sessionsWith(t, s, c.ID); n == 0 {
		t.Errorf("%s is in no session before it is kept in another", c.ID)
	}
	s.settle(c)
	return string(c.ID)
}

// sessionsWith returns how many session files have a text in them.
func sessionsWith(t *testing.T, s *store, text []byte) (n int) {
	t.Helper()
	names := mcptest.Must(s.sessions())(t)
	for _, name := range names {
		if data, err := os.ReadFile(name); err == nil && strings.Contains(string(data), string(text)) {
			n++
		}
	}
	return n
}

// A host gets the session that has calls in flight. The calls of its other sessions can be
// taken over, once.
func TestStoreSessions(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	keepSession(t, dir, "host", now)
	keepSession(t, dir, "host", now.Add(-time.Second), callOf(`"old"`, "again"))
	keepSession(t, dir, "host", now.Add(-time.Hour), callOf(`"lost"`, "again"), callOf(`"lost"`, "late"))
	keepSession(t, dir, "another", now, callOf(`"x"`, "again"))

	first, old := openStore(t, dir, "host")
	if old == nil || len(old.Calls) != 1 || string(old.Calls[0].ID) != `"old"` {
		t.Fatalf("opened %+v", old)
	}
	second, _ := openStore(t, dir, "host")
	if got := takeOver(t, second); got != "" {
		t.Errorf("took %s over: its host may still wait for it, or it is too old", got)
	}
	first.close()
	if got := takeOver(t, second); got != `"old"` {
		t.Errorf("took %q over", got)
	}
	if n := sessionsWith(t, second, []byte(`\"old\"`)) + sessionsWith(t, second, []byte(`"old"`)); n != 0 {
		t.Errorf("what was taken over is still in %d sessions", n)
	}
	if got := takeOver(t, second); got != "" {
		t.Errorf("took %s over a second time", got)
	}
}

// A call in another process's session, for which no host waits there, can be taken over:
// by one process at a time, and not after its end.
func TestStoreTakeOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	holder, _ := openStore(t, dir, "host")
	call := callOf(`"id"`, "again")
	call.Left = time.Now()
	saveRecord(t, holder, &sessionRecord{fingerprint: fingerprint{Old: "host"}, Alive: time.Now(), Calls: []callRecord{call}})
	first, _ := openStore(t, dir, "other")
	second, _ := openStore(t, dir, "other")
	if got := takeOver(t, holder); got != "" {
		t.Errorf("took %s over from its own session", got)
	}
	if takeOver(t, first) == "" || takeOver(t, second) != "" {
		t.Error("not taken over, or twice")
	}
	if takeOver(t, first) != "" {
		t.Error("taken over a second time by the process that has it")
	}
	if !first.takeOver(call.ID) || holder.takeOver(call.ID) {
		t.Error("the call does not belong to the process that has taken it over")
	}
	first.close() // as when its process ends
	if takeOver(t, second) == "" {
		t.Error("not taken over after the process that had it")
	}
	second.end(call.ID)
	third, _ := openStore(t, dir, "other")
	if second.takeOver(call.ID) || third.takeOver(call.ID) || takeOver(t, third) != "" {
		t.Error("taken over after its end")
	}

	// Old files of calls are removed, unless they are locked.
	if !third.takeOver([]byte(`"locked"`)) {
		t.Error("not taken over")
	}
	names := mcptest.Must(filepath.Glob(filepath.Join(third.dir, "*")))(t)
	for _, name := range names {
		old := time.Now().Add(-2 * staleAfter)
		mcptest.Check(t, os.Chtimes(name, old, old))
	}
	fourth, _ := openStore(t, dir, "other")
	if !fourth.takeOver(call.ID) {
		t.Error("an old file is not forgotten")
	}
	if fourth.takeOver([]byte(`"locked"`)) {
		t.Error("the file of a call that a process has is forgotten")
	}
}

// A call that is in two sessions, as a process was killed while it took the call over, stays in one if the processes that have the two end at the
// same time.
func TestStoreNeverInNone(t *testing.T) {
	t.Parallel()
	for range 100 {
		dir := t.TempDir()
		a, _ := openStore(t, dir, "host")
		b, _ := openStore(t, dir, "host")
		mcptest.Check(t, os.WriteFile(a.callFile([]byte("1")), nil, 0o600)) // of the process that was killed
		record := recordOf(callOf("1", "again"))
		mcptest.Check(t, a.save(record))
		mcptest.Check(t, b.save(record))
		errs := make(chan error, 2)
		for _, s := range []*store{a, b} {
			go func() { errs <- s.saveLast(record) }()
		}
		mcptest.Check(t, <-errs)
		mcptest.Check(t, <-errs)
		if sessionsWith(t, a, []byte(`"id":1,`)) == 0 {
			t.Fatal("the call is in no session")
		}
		a.close()
		b.close()
	}
}

// A process does not continue a call of its session that another one has taken over, or that has ended, though the process before it was
// killed, or ended before the other one had kept the call.
func TestStoreTakenOverBefore(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]func(s *store, record func() *sessionRecord) error{
		"killed": func(*store, func() *sessionRecord) error { return nil },
		"ended":  (*store).saveLast,
	} {
		dir := t.TempDir()
		a, _ := openStore(t, dir, "host")
		b, _ := openStore(t, dir, "host")
		call := callOf("1", "again")
		call.Left = time.Now()
		mcptest.Check(t, a.save(recordOf(call)))
		mcptest.Check(t, b.save(recordOf()))
		c := b.takeOverForeign(t.Context(), fingerprint{Old: "host"}, func(*callRecord) bool { return true })
		if c == nil {
			t.Fatal("not taken over")
		}
		mcptest.Check(t, last(a, recordOf(call)))
		mcptest.Check(t, b.save(recordOf(c.callRecord)))
		b.settle(c)
		a.close()
		next := func() (calls int) {
			s, old := openStore(t, dir, "host")
			defer s.close()
			if old == nil {
				t.Fatal("there is no session")
			}
			return len(old.Calls)
		}
		if n := next(); n != 0 {
			t.Errorf("%s: a call of another process continues", name)
		}
		b.close() // as when its process is killed
		if n := next(); n != 1 {
			t.Errorf("%s: a call that no process has does not continue", name)
		}
		b, _ = openStore(t, dir, "host")
		if !b.takeOver(call.ID) {
			t.Error("not taken over")
		}
		b.end(call.ID)
		b.close()
		if n := next(); n != 0 {
			t.Errorf("%s: a call that has ended continues", name)
		}
	}
}

// A process locks the session that it takes, and no other, even for a moment: the process of that one may begin just then.
func TestStoreLocksOneSession(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	keepSession(t, dir, "another", now, callOf("1", "again"))
	keepSession(t, dir, "host", now.Add(-time.Second), callOf("2", "other"))
	keepSession(t, dir, "host", now.Add(-time.Minute), callOf("3", "other"))
	locks := func() []string { return mcptest.Must(filepath.Glob(filepath.Join(dir, "connect", "*.lock")))(t) }
	for _, name := range locks() {
		mcptest.Check(t, os.Remove(name))
	}
	s, old := openStore(t, dir, "host")
	if old == nil || string(old.Calls[0].ID) != "2" {
		t.Errorf("opened %+v", old)
	}
	if got := takeOver(t, s); got != "" {
		t.Errorf("took %s over", got)
	}
	if all := locks(); len(all) != 1 {
		t.Errorf("locked: %q", all)
	}
}

// A process that begins gets its session although another one has it locked just then, to take over a call from it.
func TestStoreOpenWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		keepSession(t, dir, "host", time.Now(), callOf("1", "again"), callOf("2", "other"))
		other, _ := openStore(t, dir, "other")
		c := other.takeOverForeign(t.Context(), fingerprint{Old: "host"}, func(c *callRecord) bool { return string(c.ID) == "1" })
		if c == nil {
			t.Fatal("not taken over")
		}
		time.AfterFunc(lockedFor/2, func() { other.settle(c) })
		_, old := openStore(t, dir, "host")
		if old == nil || len(old.Calls) != 1 || string(old.Calls[0].ID) != "2" {
			t.Errorf("opened %+v", old)
		}
	})
}

// The sessions that are kept for one server are bounded. A session that cannot be kept is an error.
func TestStoreBounds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range maxSessions {
		keepSession(t, dir, fmt.Sprint("host ", i), time.Now())
	}
	s := storeIn(t, dir)
	if _, err := s.open(fingerprint{Old: "one more"}); err == nil || s.isOpen() {
		t.Error("there is no bound")
	}
	if old, err := s.open(fingerprint{Old: "host 7"}); err != nil || old == nil {
		t.Errorf("a session that is kept: %v, %v", old, err)
	}
	keepSession(t, t.TempDir(), "host", time.Now())
	file := filepath.Join(t.TempDir(), "file")
	mcptest.Check(t, os.WriteFile(file, nil, 0o600))
	if _, err := storeIn(t, file).open(fingerprint{Old: "host"}); err == nil {
		t.Error("opened where there can be no directory")
	}
}

// A store that is nil, or not open, keeps nothing.
func TestStoreClosed(t *testing.T) {
	t.Parallel()
	for _, s := range []*store{nil, storeIn(t, t.TempDir())} {
		err := s.save(func() *sessionRecord {
			t.Error("saved")
			return nil
		})
		if err != nil || s.isOpen() {
			t.Error("open", err)
		}
		s.end([]byte(`"id"`))
		s.close()
	}
}

// The layouts of older builds: records are read in them, and written in them.
type oldRecord struct {
	Same  string       `json:"same,omitempty"`
	Print string       `json:"print"`
	Alive time.Time    `json:"alive"`
	Conn  client.State `json:"conn"`
	Calls []oldCall    `json:"calls,omitempty"`
}

type oldCall struct {
	ID     json.RawMessage   `json:"id"`
	Method string            `json:"method"`
	Same   string            `json:"same,omitempty"`
	Print  string            `json:"print"`
	Left   time.Time         `json:"left,omitzero"`
	Place  *client.CallState `json:"place,omitempty"`
	Answer json.RawMessage   `json:"answer,omitempty"`
}

// This build reads the records of older builds, and older builds read the records of this one.
func TestRecordFormat(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now().UTC().Truncate(time.Second)
	text := fmt.Sprintf(`{"same":"s1","print":"p1","alive":%q,"conn":{"url":"http://example.com/mcp","session":"secret","revision":"2025-11-25",`+
		`"keys":true,"initialize":{"jsonrpc":"2.0"},"result":{"a":1},"ready":true,"lastEventId":"e"},`+
		`"calls":[{"id":"\"x-1\"","method":"tools/call","same":"s2","print":"p2","left":%q,"place":{"id":"\"x-1\"","method":"tools/call","lastEventId":"f"}},`+
		`{"id":"\"x-2\"","method":"tools/call","print":"p3","answer":{"jsonrpc":"2.0","id":"x-2","result":{}}}],"future":{}}`,
		now.Format(time.RFC3339), now.Add(-time.Minute).Format(time.RFC3339))
	s := storeIn(t, dir)
	name := filepath.Join(s.dir, s.prefix+"-0.json")
	mcptest.Check(t, os.MkdirAll(s.dir, 0o700))
	mcptest.Check(t, os.WriteFile(name, []byte(text), 0o600))
	got, err := s.open(fingerprint{Same: "s1", Old: "other"})
	if err != nil || got == nil || got.Conn.Session != "secret" || !got.Conn.Ready || len(got.Calls) != 2 || !got.Alive.Equal(now) {
		t.Fatalf("read %+v, %v", got, err)
	}
	calls := got.repeatable()
	if len(calls) != 2 || !calls[0].Left.Equal(now.Add(-time.Minute)) || calls[0].Place.LastEventID != "f" ||
		!calls[1].Left.Equal(now) || len(calls[1].Answer) == 0 || !calls[0].matches(fingerprint{Same: "s2"}) || !calls[1].matches(fingerprint{Same: "s3", Old: "p3"}) {
		t.Errorf("calls %+v", calls)
	}
	mcptest.Check(t, s.save(func() *sessionRecord { return got }))
	data := mcptest.Must(os.ReadFile(name))(t)
	var before, after oldRecord
	mcptest.Check(t, json.Unmarshal([]byte(text), &before))
	mcptest.Check(t, json.Unmarshal(data, &after))
	if was, is := fmt.Sprint(mustJSON(t, before)), fmt.Sprint(mustJSON(t, after)); was != is {
		t.Errorf("a build before reads\n%s; want\n%s", is, was)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text := mcptest.Must(json.Marshal(v))(t)
	return string(text)
}

// The names of files are the same as in older builds.
func TestFileNames(t *testing.T) {
	t.Parallel()
	s := newStore("state", "http://example.com/mcp", "auto", map[string][]string{"Authorization": {"Bearer x"}})
	got := filepath.ToSlash(s.callFile([]byte(`"abc-1"`)))
	if want := "state/connect/" + "0ad220eb1ec88654c0dca824-call-e7d9961d15c7a5bf164fc2c3"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}
