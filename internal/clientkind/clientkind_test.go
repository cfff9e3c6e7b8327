package clientkind

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestClientKinds bounds the lines and the memory that clients cause, as they choose their names.
func TestClientKinds(t *testing.T) {
	t.Parallel()
	const legacy, modern = "2025-11-25", "2026-07-28"
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	lines := func() (all []string) {
		for line := range strings.Lines(log.String()) {
			_, line, _ = strings.Cut(line, "level=")
			all = append(all, strings.TrimSpace(line))
		}
		log.Reset()
		return all
	}
	info := func(name string) []byte { return fmt.Appendf(nil, `{"name":%q,"version":"1"}`, name) }
	var k Table
	now := time.Now()
	for range 3 {
		k.Spoke(logger, now, info("ada"), legacy)
		k.Spoke(logger, now, info("ada"), modern)
		k.Spoke(logger, now, nil, modern)
	}
	if got := lines(); len(got) != 3 || got[0] != `INFO msg="a kind of client speaks the legacy era" client=ada version=1 revision=2025-11-25` ||
		!strings.Contains(got[1], `modern era" client=ada`) || !strings.Contains(got[2], `modern era" client="" version=""`) {
		t.Errorf("the log has %q", got)
	}

	// A kind of client that falls back to the legacy era causes no warning, however often it is
	// refused first; nor does one that begins two sessions at once.
	for range 10 {
		k.Refused(logger, now, info("ada"), modern)
	}
	for range insists - 1 {
		k.Refused(logger, now, info("bob"), modern)
	}
	k.Spoke(logger, now, info("bob"), legacy)
	k.Refused(logger, now, info("bob"), modern)
	for range 10 {
		k.Refused(logger, now, info("pinned"), modern)
	}
	if got := lines(); len(got) != 2 || !strings.Contains(got[0], "client=bob") || !strings.HasPrefix(got[1], "WARN") || !strings.Contains(got[1], "client=pinned") {
		t.Errorf("the log has %q", got)
	}

	long := strings.Repeat("é", 1<<10)
	for i := range 10 * mostKinds {
		k.Spoke(logger, now, info(fmt.Sprint(i, long)), modern)
	}
	got := lines()
	if len(got) != mostKindLines-5 || len(k.kinds) > mostKinds {
		t.Errorf("%d lines, and %d kinds are kept", len(got), len(k.kinds))
	}
	for kind := range k.kinds {
		if len(kind.Name) > longestName {
			t.Errorf("a name of %d bytes is kept", len(kind.Name))
		}
	}
	k.Spoke(logger, now.Add(kindLinesPeriod), info("late"), modern)
	if got := lines(); len(got) != 1 {
		t.Errorf("a period later the log has %q", got)
	}
}
