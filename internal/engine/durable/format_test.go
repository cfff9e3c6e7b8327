package durable

import "testing"

// A change of the format needs a higher formatVersion: else older versions take the new data for damaged.
func TestFormatVersion(t *testing.T) {
	t.Parallel()
	if most := max(recordVersion, frameVersion, claimVersion); most > formatVersion {
		t.Errorf("something is written in format %d, and formatVersion is %d", most, formatVersion)
	}
}
