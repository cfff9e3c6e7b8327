//go:build !race

package transcripts_test

const raceEnabled = false
