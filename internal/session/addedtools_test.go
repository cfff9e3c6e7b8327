package session

import (
	"context"
	"time"

	"holdfast/internal/feature/handofftext"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
)

// passes is an addition that hands each tool call off to an heir after a time. Its own tools have the names of the built-in ones.
type passes struct {
	noAddition
	after time.Duration
}

// passAfter makes a value for [Options.Addition].
func passAfter(after time.Duration) func(*Manager, *Options) Addition {
	return func(*Manager, *Options) Addition { return passes{after: after} }
}

func (passes) IsOn() bool                          { return true }
func (passes) Tool(name string) (own, nested bool) { return handofftext.IsTool(name), false }
func (p passes) Patience(_ *Call, m *jsonrpc.Message, _ hosts.Host) time.Duration {
	if m.Method != "tools/call" || handofftext.IsTool(tools.Called(m)) {
		return 0
	}
	return p.after
}

func (p passes) Late(l *Late) {
	if asking, sent := l.State(); asking || !sent {
		l.Again(p.after)
		return
	}
	_ = l.PassOn(func(uint64) []byte { return []byte(`{"content":[]}`) })
}

func (passes) Run(context.Context, *Call, *jsonrpc.Message, hosts.Host) []byte { return []byte(`{}`) }
