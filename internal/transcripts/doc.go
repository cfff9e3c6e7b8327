// Package transcripts has tests that record the messages that clients get over each transport, on
// one node and on several, and compare them with the files in testdata.
package transcripts
