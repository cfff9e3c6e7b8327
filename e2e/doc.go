// Package e2e tests the holdfast program with real programs of others: the MCP
// Inspector's command line, the TypeScript clients, and a stdio server from npm,
// over real sockets that are cut.
//
// Its tests need node and the packages of package.json, installed with
//
//	npm install --prefix DIR --ignore-scripts
//
// in a DIR that holds a copy of package.json: .ci/tmp/npm in this repository, or
// what HOLDFAST_NPM says. Without them the tests are skipped, but where CI is set
// they fail.
package e2e
