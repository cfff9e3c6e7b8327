//go:build race

package transcripts_test

// raceEnabled: all is so slow under the race detector that only races count.
const raceEnabled = true
