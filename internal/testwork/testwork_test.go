package testwork

import (
	"testing"

	_ "holdfast/internal/testlong" // the flag -long
)

// Work that is linear in n passes.
func TestLinear(t *testing.T) {
	sum := 0
	Linear(t, 10_000, func(n int) func() {
		return func() {
			for i := range n {
				sum += i * i
			}
		}
	})
}
