// Package mcptest is the kit that tests of this module share: both ends of MCP as they are on the wire, and helpers around
// them.
//
//	Post, Send, Client   a client over HTTP, of each revision: it sends the text that the test wrote
//	Socket, Process      a client over a WebSocket, and over the pipes of a program
//	Stream               the events of an answer, read one by one
//	Script, Server       a server that sends the text that the test wrote: over HTTP, HTTP+SSE, a WebSocket or stdio
//	Answers, Questions   a Script as a table, by method and tool, and requests of a Script to its client
//	Methods              a server over HTTP as a table, which may do things that no server should
//	Process              a program under test, with its log
//	Pipes, Duplex        a listener, and a connection, in memory, for a synctest bubble
//	Serve                a handler that is served until the end of its test; ShutDownAtEnd shuts it down there
//	Log                  a log that is read while it is written
//	Eventually           a wait for a condition that no channel reports
//	Must, Check          calls that have to succeed
//
// The kit does not know Holdfast: it sends the text that it is given, and does not judge the answer. A function that takes
// a testing.TB ends the test if its own part fails; the test checks the answer. Requests have the header fields that their
// revision needs; a test that wants others names them.
//
// The package is for tests. No product code imports it, which arch_test.go sees to.
package mcptest
