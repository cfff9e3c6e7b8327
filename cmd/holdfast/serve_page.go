package main

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"sync"

	"holdfast"
	"holdfast/internal/terminal"
)

// servePage serves the live page beside the probes. What an operator may do there needs a token: the
// one that is given, or a new one.
func (f *serveFlags) servePage(opts *holdfast.Options, admin *admin) {
	if admin.server == nil {
		return
	}
	opts.Page = admin.mux
	opts.PageDrain = sync.OnceFunc(func() { close(admin.drain) })
	if opts.PageToken == "" {
		opts.PageToken = rand.Text()
	}
}

// announce says where probes are answered and where the live page is, once nothing keeps the program from serving. What
// the demo has of that is told of last.
func (f *serveFlags) announce(admin *admin, token string) {
	if admin.server == nil || f.ownPage {
		return
	}
	slog.Info("answering probes", "healthz", "http://"+admin.addr+"/healthz", "readyz", "http://"+admin.addr+"/readyz")
	f.greetPage(admin, token)
}

// greetPage prints where the live page is, and the token of its actions if nobody else knows that. The token is
// shown on a terminal alone: what is kept in a log is read by others.
func (f *serveFlags) greetPage(admin *admin, token string) {
	fmt.Fprintf(f.greeting, "Live page at http://%s/\n", admin.place())
	switch {
	case f.opts.PageToken != "":
	case terminal.IsTerminal(f.greeting):
		fmt.Fprintf(f.greeting, "  its actions need the token %s\n", token)
	default:
		fmt.Fprintln(f.greeting, "  its actions need a token: choose one with HOLDFAST_ADMIN_TOKEN")
	}
}
