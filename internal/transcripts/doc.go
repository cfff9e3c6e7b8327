// Package transcripts has tests that record what clients see of each transport, on one node
// and on several, and compare it with the files in testdata.
package transcripts
