package server_test

import (
	"fmt"
	"net/http"
	"testing"
)

// listed returns the ids of all tasks that a client can list, and the number of pages. No task
// may be listed twice.
func (p *peer) listed() (ids map[string]bool, pages int) {
	p.n.t.Helper()
	ids = map[string]bool{}
	for cursor := `{}`; cursor != ""; pages++ {
		m := p.says("l", "tasks/list", cursor)
		if m.Error != nil {
			p.n.t.Fatalf("tasks/list: %+v", m.Error)
		}
		if len(m.Result.Tasks) > 50 {
			p.n.t.Errorf("a page of %d", len(m.Result.Tasks))
		}
		for _, task := range m.Result.Tasks {
			if ids[task.TaskID] {
				p.n.t.Errorf("%s: listed twice", task.TaskID)
			}
			ids[task.TaskID] = true
		}
		cursor = ""
		if m.Result.NextCursor != "" {
			cursor = fmt.Sprintf(`{"cursor":%q}`, m.Result.NextCursor)
		}
	}
	return ids, pages
}

// tasks/list lists the tasks of all the principal's sessions, at any node, also after a node is
// lost.
func TestLegacyTasksOfAllNodes(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, legacyTasksConfig())
	want := map[string]bool{}
	var own []*peer
	for _, n := range f.nodes {
		p := n.able("2025-11-25", "me")
		own = append(own, p)
		for i := range 25 {
			want[p.begins(fmt.Sprint(i), "echo", `{"text":"x"}`).TaskID] = true
		}
		n.able("2025-11-25", "you").begins("1", "echo", `{"text":"x"}`)
	}
	check := func(what string, p *peer, least int) {
		t.Helper()
		got, pages := p.listed()
		for id := range got {
			if !want[id] {
				t.Errorf("%s: %s is not mine", what, id)
			}
		}
		if len(got) != len(want) || pages < least {
			t.Errorf("%s: %d of %d tasks on %d pages", what, len(got), len(want), pages)
		}
	}
	check("at its node", own[0], 2)
	if m := f.nodes[0].connect("2025-11-25", nil).says("l", "tasks/list", `{}`); m.Result.Tasks == nil {
		t.Error("no tasks are null")
	}
	check("at another node", own[1].at(f.nodes[2]), 2)
	// A session without a principal does not list another's tasks.
	f.nodes[0].connect("2025-11-25", nil).begins("1", "echo", `{"text":"x"}`)
	if got, _ := f.nodes[1].connect("2025-11-25", nil).listed(); len(got) != 0 {
		t.Errorf("tasks of another client without a name: %v", got)
	}
	f.nodes[0].kill()
	check("with a node lost", own[1], 2)
}

// All tasks are listed in the end, also if more sessions are lost than a node takes over for one page.
func TestLegacyTasksOfManyLost(t *testing.T) {
	t.Parallel()
	const many = 70 // more than a node takes over for one page
	f := newFarm(t, 2, legacyTasksConfig())
	want := 1
	own := f.nodes[1].able("2025-11-25", "me")
	own.begins("1", "echo", `{"text":"x"}`)
	for i := range many {
		p := f.nodes[0].able("2025-11-25", "me")
		if i%2 == 0 { // a client that resumes no requests
			p = f.nodes[0].connect("2025-11-25", http.Header{"Authorization": {"Bearer me"}})
		}
		p.begins("1", "echo", `{"text":"x"}`)
		want++
	}
	f.nodes[0].kill()
	if got, _ := own.listed(); len(got) != want {
		t.Errorf("%d tasks of %d", len(got), want)
	}
}
