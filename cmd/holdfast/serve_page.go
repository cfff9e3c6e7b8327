package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"sync"

	"holdfast"
)

// servePage serves the live page beside the probes. What an operator may do there needs a token: the
// one that is given, or a new one. It prints where the page is, but that of the demo is told of last.
func (f *serveFlags) servePage(opts *holdfast.Options, admin *admin, out io.Writer) {
	if admin.server == nil {
		return
	}
	opts.Page, opts.PageToken = admin.mux, f.adminToken
	opts.PageDrain = sync.OnceFunc(func() { close(admin.drain) })
	if opts.PageToken == "" {
		opts.PageToken = rand.Text()
	}
	if !f.ownPage {
		f.greetPage(admin, opts.PageToken, out)
	}
}

// greetPage prints where the live page is, and the token of its actions if nobody else knows that.
func (f *serveFlags) greetPage(admin *admin, token string, out io.Writer) {
	fmt.Fprintf(out, "Live page at http://%s/\n", admin.place())
	if f.adminToken == "" {
		fmt.Fprintf(out, "  its actions need the token %s\n", token)
	}
}
