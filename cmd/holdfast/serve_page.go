package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"sync"

	"holdfast"
)

// servePage serves the live page beside the probes, and prints where it is. What an operator may do
// there needs a token: the one that is given, or a new one.
func (f *serveFlags) servePage(opts *holdfast.Options, admin *admin, out io.Writer) {
	if admin.server == nil {
		return
	}
	opts.Page, opts.PageToken = admin.mux, f.adminToken
	opts.PageDrain = sync.OnceFunc(func() { close(admin.drain) })
	fmt.Fprintf(out, "Live page at http://%s/\n", admin.addr)
	if opts.PageToken == "" {
		opts.PageToken = rand.Text()
		fmt.Fprintf(out, "  its actions need the token %s\n", opts.PageToken)
	}
}
