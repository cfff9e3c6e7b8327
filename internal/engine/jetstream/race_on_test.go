//go:build race

package jetstream_test

// raceEnabled: the race detector runs without -long, and has the suite of a cluster all the same.
const raceEnabled = true
