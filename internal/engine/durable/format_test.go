package durable

import "testing"

// Who changes how something is written raises formatVersion too, or older versions would take it for damaged.
func TestFormatVersion(t *testing.T) {
	t.Parallel()
	if most := max(recordVersion, frameVersion, claimVersion); most > formatVersion {
		t.Errorf("something is written in format %d, and formatVersion is %d", most, formatVersion)
	}
}
