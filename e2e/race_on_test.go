//go:build race

package e2e

// raceEnabled: under the race detector the program is built with it too.
const raceEnabled = true
