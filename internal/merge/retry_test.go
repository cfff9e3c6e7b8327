package merge

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/jsonrpc"
)

// withFlaky begins clients of a server that works and of f.
func withFlaky(t *testing.T, f *fake, clients int) (all []*client) {
	b := New(func() []Member {
		return []Member{{Name: "well", Backend: &fake{tool: "x"}, Prefix: "well_"}, {Name: "ill", Backend: f, Prefix: "ill_"}}
	}, slog.New(slog.DiscardHandler))
	for range clients {
		c := newClient(t, b)
		if m, _ := c.ask(t, "initialize"); m.Error != nil {
			t.Fatalf("initialize: %s", m.Raw)
		}
		c.tell(t, "", "notifications/initialized", "{}")
		all = append(all, c)
	}
	return all
}

// changes returns how many notifications a client got that the list of tools has changed.
func (c *client) changes() (n int) {
	_, others := c.told()
	for _, method := range others {
		if method == "notifications/tools/list_changed" {
			n++
		}
	}
	return n
}

// A server that cannot be opened is tried again, with a growing pause, as often for many clients as for one. When it
// works, each client is notified once.
func TestTriedAgain(t *testing.T) {
	t.Parallel()
	for _, clients := range []int{1, 10} {
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := new(fake)
				f.tool = "y"
				f.broken.Store(true)
				all := withFlaky(t, f, clients)
				began := f.opened.Load()
				time.Sleep(time.Hour)
				tries := int(f.opened.Load() - began)
				if least, most := int(time.Hour/lastRetry), int(time.Hour/lastRetry)+6; tries < least || tries > most {
					t.Errorf("it was tried %d times in an hour, want %d to %d", tries, least, most)
				}
				f.broken.Store(false)
				time.Sleep(lastRetry)
				for i, c := range all {
					if n := c.changes(); n != 1 {
						t.Errorf("client %d was told %d times", i, n)
					}
					if names, _ := c.tools(t); names != "well_x ill_y" {
						t.Errorf("client %d: tools: %s", i, names)
					}
				}
				opened := f.opened.Load()
				time.Sleep(time.Hour)
				if n := f.opened.Load() - opened; n != 0 {
					t.Errorf("a server that works was opened %d times more", n)
				}
			})
		})
	}
}

// Clients of a server that fails are notified when its tools are there, not before, and once.
func TestPageTriedAgain(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(f *fake) (works func()){
		"it ends":  func(f *fake) func() { f.dies.Store("tools/list"); return func() { f.dies.Store("") } },
		"it hangs": func(f *fake) func() { f.leaves("tools/list"); return func() { f.leaves() } },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := new(fake)
				f.tool = "y"
				works := fails(f)
				c := withFlaky(t, f, 1)[0]
				if names, _ := c.tools(t); names != "well_x" {
					t.Errorf("tools: %s", names)
				}
				time.Sleep(time.Hour)
				if n := c.changes(); n != 0 {
					t.Errorf("the client was told %d times of what is not there", n)
				}
				works()
				time.Sleep(time.Minute)
				if n := c.changes(); n != 1 {
					t.Errorf("the client was told %d times", n)
				}
				if names, _ := c.tools(t); names != "well_x ill_y" {
					t.Errorf("tools: %s", names)
				}
			})
		})
	}
}

// If a server comes back with more capabilities, the clients are notified. If it comes back unchanged, they are not.
func TestComesBackOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := new(fake)
		f.tool = "y"
		c := withFlaky(t, f, 1)[0]
		call := func(id string) {
			t.Helper()
			c.tell(t, id, "tools/call", `{"name":"ill_y"}`)
			if m, _ := c.answered(id); m.Error != nil {
				t.Errorf("%s", m.Raw)
			}
			synctest.Wait()
		}
		f.ends(errors.New("killed"))
		call("20")
		if n := c.changes(); n != 0 {
			t.Errorf("told %d times of a server that is as it was", n)
		}
		f.ends(errors.New("killed"))
		f.more = `"prompts":{},`
		call("21")
		if n := c.changes(); n != 1 {
			t.Errorf("told %d times of a server that has prompts now", n)
		}
	})
}

// A change from before the client is ready is announced when it is. The client's end ends all tries.
func TestToldWhenReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := new(fake)
		f.tool = "y"
		f.broken.Store(true)
		b := New(func() []Member {
			return []Member{{Name: "well", Backend: &fake{tool: "x"}, Prefix: "well_"}, {Name: "ill", Backend: f, Prefix: "ill_"}}
		}, slog.New(slog.DiscardHandler))
		c := newClient(t, b)
		c.ask(t, "initialize")
		f.broken.Store(false)
		time.Sleep(time.Minute)
		if n := c.changes(); n != 0 {
			t.Errorf("the client is told %d times before it is ready", n)
		}
		c.tell(t, "", "notifications/initialized", "{}")
		synctest.Wait()
		if n := c.changes(); n != 1 {
			t.Errorf("the client is told %d times", n)
		}
		f.broken.Store(true)
		other := newClient(t, b)
		other.ask(t, "initialize")
		_ = other.conn.Close()
		opened := f.opened.Load()
		time.Sleep(time.Hour)
		if n := f.opened.Load() - opened; n != 0 {
			t.Errorf("it was tried %d times for a client that has left", n)
		}
	})
}

// If no server has answered a list, the error names each server with its reason.
func TestNoPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := new(fake)
		f.dies.Store("tools/list")
		hangs := &fake{mute: []string{"tools/list"}}
		c := newClient(t, New(func() []Member {
			return []Member{{Name: "hangs", Backend: hangs, Prefix: "h_"}, {Name: "ends", Backend: f, Prefix: "e_"}}
		}, slog.New(slog.DiscardHandler)))
		c.ask(t, "initialize")
		m, _ := c.ask(t, "tools/list")
		text := jsonrpc.String(jsonrpc.Field(m.Error, "message"))
		for _, want := range []string{"tools/list", `"hangs"`, "in time", `"ends"`, "it ends"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s; want %s in it", m.Raw, want)
			}
		}
	})
}
