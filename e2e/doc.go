// Package e2e tests the holdfast program with real programs of others: the MCP
// Inspector's command line, the TypeScript clients, and a stdio server from npm,
// over real sockets that are cut; and our client with servers of others: the
// official go-sdk's, server-everything from npm, and one made with mcp-go. And it
// tests several nodes on one engine, as processes that are killed, stopped, cut off
// and replaced (TestCluster…): over three JetStream servers, which need nothing, and
// over a redis-server, if there is one. A Chromium, if there is one, shows pages that try
// to reach the program from another site. TestSweep sends it what no client would
// (strange.go). The longest of these run with -cluster.long,
// and where CI is set; go test ./e2e -args -h lists the flags that make them harder.
//
// Most tests need node and the packages of package.json, installed with
//
//	npm install --prefix DIR --ignore-scripts
//
// in a DIR that holds a copy of package.json, and that HOLDFAST_NPM names. They take
// their time, so without HOLDFAST_NPM they are skipped. Where CI is set, DIR is
// .ci/tmp/npm in this repository if HOLDFAST_NPM does not say otherwise, and the
// tests fail rather than being skipped.
package e2e
