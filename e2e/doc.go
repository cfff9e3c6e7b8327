// Package e2e tests the holdfast program from outside: as a process, over real sockets
// that are cut, with real programs of others.
//
// The tests of several nodes (TestCluster…) run nodes as processes that are killed, stopped, cut off
// and replaced, over three embedded JetStream servers. TestSweep sends the program requests that no
// client would (strange.go). With -long they run longer, and these run too: the same over Redis, tests
// of half a minute and more, a node of the build before beside one of this build, examples/cluster, the
// MCP Inspector's command line, the TypeScript clients, servers from npm and one made with mcp-go, and
// pages of another site in a Chromium.
//
// So -long needs redis-server, chromium, strace, python3 with venv, npm, and node with the packages of
// package.json. The tests look for these packages in .ci/tmp/npm, where .ci/run installs them, or in
// the directory that HOLDFAST_NPM names:
//
//	npm install --prefix DIR --ignore-scripts
//
// with a copy of package.json in DIR. go test ./e2e -args -h lists the flags that make
// the tests harder.
package e2e
