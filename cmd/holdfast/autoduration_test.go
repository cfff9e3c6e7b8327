package main

import (
	"testing"
	"time"

	"holdfast"
)

// Serve hands calls off, and sends progress, as suits each host, unless a flag sets a time.
func TestAutoDurations(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"handoff-after", "progress-every"} {
		for value, want := range map[string]time.Duration{"": holdfast.Auto, "auto": holdfast.Auto, "0": holdfast.Never, "never": holdfast.Never, "-1s": holdfast.Never, "50s": 50 * time.Second} {
			fs := newServe().Flags()
			if value != "" {
				if err := fs.Set(name, value); err != nil {
					t.Errorf("--%s %s: %v", name, value, err)
				}
			}
			if d, ok := fs.Lookup(name).Value.(*autoDuration); !ok || time.Duration(*d) != want {
				t.Errorf("--%s %s: %v", name, value, fs.Lookup(name).Value)
			}
		}
		for _, value := range []string{"soon", "50"} {
			if newServe().Flags().Set(name, value) == nil {
				t.Errorf("--%s %s is taken", name, value)
			}
		}
	}
}
