//go:build race

package client_test

// raceEnabled: a test may take longer under the race detector.
const raceEnabled = true
