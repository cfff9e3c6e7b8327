//go:build race

package holdfast_test

// raceEnabled: under the race detector the program is built with it too.
const raceEnabled = true
