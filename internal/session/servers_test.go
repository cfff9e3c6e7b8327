package session

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/backend"
	"holdfast/internal/caller"
)

// manyDesk is a backend with many servers.
type manyDesk struct {
	*desk
	mu       sync.Mutex
	versions map[string]uint64
	stopIdle time.Duration
	changed  func()
}

func (d *manyDesk) Server(name string, _ bool) (uint64, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.versions[name], d.stopIdle
}

func (d *manyDesk) StartsProcess(name string) bool    { return name != "remote" }
func (d *manyDesk) SafeTool(server, tool string) bool { return server == "files" && tool == "x" }
func (d *manyDesk) OnChange(changed func())           { d.changed = changed }

// set gives a server a version. Version 0 removes the server.
func (d *manyDesk) set(name string, version uint64) {
	d.mu.Lock()
	d.versions[name] = version
	d.mu.Unlock()
	d.changed()
}

// A silent session loses its conversation, and gets another when it is used. So does a session
// with a changed server, but not while a call is in flight. A session with a removed server ends.
func TestServersChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &manyDesk{desk: &desk{}, versions: map[string]uint64{"files": 1, "memory": 1}}
		h := newHouse(t, Options{}, nil)
		h.Close()
		h.desk, h.Manager = d.desk, NewManager(h.store, backend.Backend(d), Options{Shared: Shared{Logger: h.logger}})
		defer h.close()
		files, memory := h.openAt("files", ""), h.openAt("memory", "")
		isOpen := func(s *Session) bool {
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.backend.link != nil
		}
		if !h.Tools.Operator("files", "x") || h.Tools.Operator("memory", "x") {
			t.Error("the tools that are called safe are not those of their server")
		}
		d.set("files", 2)
		if isOpen(files) || !isOpen(memory) {
			t.Error("after a change the old conversation stays, or another server's does not")
		}
		c := begin(t, files, false, request(1))
		if !isOpen(files) {
			t.Error("the conversation is not opened again")
		}
		d.set("files", 3)
		if !isOpen(files) {
			t.Error("a change closes a conversation with a call in flight")
		}
		c.Withdraw("enough")
		time.Sleep(2 * removedAgain)
		if isOpen(files) {
			t.Error("the call has ended, and the old conversation stays")
		}
		c = begin(t, files, false, request(1))
		d.stopIdle = time.Minute
		d.set("files", 4)
		time.Sleep(5 * time.Minute)
		if !isOpen(files) {
			t.Error("a conversation with a call in flight was closed")
		}
		if isOpen(memory) {
			t.Error("a silent session keeps its conversation")
		}
		d.set("files", 0)
		if isOpen(files); files.isClosed() {
			t.Error("the session of a removed server ended with a call in flight")
		}
		c.Withdraw("enough")
		time.Sleep(time.Second)
		if _, err := h.Find(files.ID(), caller.At("files", "")); !errors.Is(err, ErrNotFound) {
			t.Error("the session of a removed server is there:", err)
		}
		begin(t, memory, false, request(2))
		d.set("memory", 0)
		time.Sleep(2 * removedGrace)
		if !memory.isClosed() {
			t.Error("the session of a removed server stays for its calls")
		}
	})
}

// Conversations with a server that starts no process for each of them take no place. They are
// not refused at the bound, and leave the places to other sessions while they are in use.
func TestServersPlaces(t *testing.T) {
	t.Parallel()
	d := &manyDesk{desk: &desk{}, versions: map[string]uint64{"files": 1, "remote": 1}}
	h := newHouse(t, Options{}, nil)
	h.Close()
	h.desk, h.Manager = d.desk, NewManager(h.store, backend.Backend(d), Options{Shared: Shared{Logger: h.logger}, MaxProcesses: 1})
	defer h.close()
	for range 3 {
		h.use(h.openAt("remote", ""), 1)
	}
	if taken, links := h.processes(); taken != 0 || links != 0 {
		t.Errorf("%d places are taken, of %d conversations", taken, links)
	}
	h.use(h.openAt("files", ""), 1)
	h.use(h.openAt("remote", ""), 1)
	_, err := h.New(from("192.0.2.9"), caller.At("files", ""), false, nil)
	wantBusy(t, "a second process", err, "--max-processes")
	for _, s := range h.all() {
		h.End(s)
	}
	h.empty()
}
