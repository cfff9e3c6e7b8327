// Package mcptest is what tests of this module share: both ends of MCP as they are on the wire, and what surrounds them.
//
//	Post, Send, Client   a client over HTTP, of each revision: it sends the text that the test wrote
//	Socket, Process      a client over a WebSocket, and over the pipes of a program
//	Stream               the events of an answer, read one by one
//	Script, Server       a server that says the text that the test wrote: over HTTP, HTTP+SSE, a WebSocket or stdio
//	Answers, Questions   a Script as a table, by method and tool, and what a Script asks its client
//	Methods              a server over HTTP as a table, where it is to do what none should
//	Process              a program under test, with its log
//	Pipes, Duplex        a listener, and a connection, in memory, for a synctest bubble
//	Serve                a handler that is served until the end of its test; ShutDownAtEnd shuts it down there
//	Log                  a log that is read while it is written
//	Eventually           the way to wait for what no channel tells of
//	Must, Check          calls that have to succeed
//
// Nothing here knows Holdfast: the kit sends what it is given, and has no opinion of the answer. A function that takes a
// testing.TB ends the test where its own part fails; what the answer has to be the test says. Requests have the fields that
// their revision wants, in the order of RFC 9110; a test that wants others names them.
//
// The package is for tests. No product code imports it, which arch_test.go sees to.
package mcptest
