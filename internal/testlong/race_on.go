//go:build race

package testlong

// Race says that the test runs under the race detector.
const Race = true
