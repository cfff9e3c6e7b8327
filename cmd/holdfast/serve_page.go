package main

import (
	"crypto/rand"
	"fmt"
	"sync"

	"holdfast"
	"holdfast/internal/terminal"
)

// servePage serves the live page beside the probes. What an operator may do there needs a token: the
// one that is given, or a new one. It prints where the page is, but that of the demo is told of last.
func (f *serveFlags) servePage(opts *holdfast.Options, admin *admin) {
	if admin.server == nil {
		return
	}
	opts.Page, opts.PageToken = admin.mux, f.adminToken
	opts.PageDrain = sync.OnceFunc(func() { close(admin.drain) })
	if opts.PageToken == "" {
		opts.PageToken = rand.Text()
	}
	if !f.ownPage {
		f.greetPage(admin, opts.PageToken)
	}
}

// greetPage prints where the live page is, and the token of its actions if nobody else knows that. The token is
// shown on a terminal alone: what is kept in a log is read by others.
func (f *serveFlags) greetPage(admin *admin, token string) {
	fmt.Fprintf(f.greeting, "Live page at http://%s/\n", admin.place())
	switch {
	case f.adminToken != "":
	case terminal.IsTerminal(f.greeting):
		fmt.Fprintf(f.greeting, "  its actions need the token %s\n", token)
	default:
		fmt.Fprintln(f.greeting, "  its actions need a token: choose one with HOLDFAST_ADMIN_TOKEN")
	}
}
