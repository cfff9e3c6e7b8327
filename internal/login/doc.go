// Package login gets a client the tokens that a server wants (2025-11-25, Authorization), and keeps them.
//
// A [Source] is the authorizer of a connection. At the first 401 it finds the authorization server of the
// server (discover.go), becomes a client of it (register.go), and asks the user to log in: in a browser (browser.go), or
// with a code on another device (device.go). A machine logs in without a user (machine.go). Tokens are in a file for each
// server and client (store.go), which the processes of a user share under a lock: one of them logs in or renews a token,
// and the others take the new one.
//
// A login belongs to the Source, and not to the request that has begun it: a host that gives a request up does not
// end it, and other requests with a token do not wait.
package login
