package main

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"sync"

	"holdfast"
	"holdfast/internal/terminal"
)

// servePage serves the live page beside the probes. Its actions need a token: the one that is given,
// or a new one.
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

// announce says where the probes and the live page are, once nothing keeps the program from serving. The page of the
// demo is announced last, by [serveFlags.greetPage].
func (f *serveFlags) announce(admin *admin, token string) {
	if admin.server == nil || f.ownPage {
		return
	}
	slog.Info("answering probes", "healthz", "http://"+admin.addr+"/healthz", "readyz", "http://"+admin.addr+"/readyz")
	f.greetPage(admin, token)
}

// greetPage prints where the live page is, and the token of its actions if it was made here. The token is shown
// on a terminal alone: other people read logs.
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
