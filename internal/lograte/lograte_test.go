package lograte

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/mcptest"
)

// A buffer is a log for concurrent writers, such as timers.
type buffer struct{ mcptest.Log }

// take returns the text that was written since the last call.
func (b *buffer) take() string {
	synctest.Wait()
	return b.Take()
}

// TestRate has more lines of one text than may be logged in a minute: the others are counted. Other texts,
// and lines of level Debug, are logged meanwhile.
func TestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out buffer
		log := slog.New(New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
		for i := range 2 * mostBad {
			log.With("client", i).Warn("bad", "i", i)
			log.Debug("wanted")
		}
		log.Error("other")
		all := out.take()
		for text, want := range map[string]int{"msg=bad client=": mostBad, "msg=wanted": 2 * mostBad, "msg=other": 1, "more": 0} {
			if n := strings.Count(all, text); n != want {
				t.Errorf("%d times %q: want %d", n, text, want)
			}
		}
		time.Sleep(window)
		if all, want := out.take(), fmt.Sprintf(`level=WARN msg="bad: and %d more in the last minute" lines=%[1]d`, mostBad); !strings.Contains(all, want) || strings.Count(all, "\n") != 1 {
			t.Errorf("after a minute:\n%swant %s", all, want)
		}
		log.Warn("bad")
		if all := out.take(); !strings.Contains(all, "msg=bad\n") {
			t.Errorf("in the next minute: %s", all)
		}
		for range mostElse + 5 {
			log.Info("good")
		}
		if n := strings.Count(out.take(), "msg=good"); n != mostElse {
			t.Errorf("%d lines of level Info", n)
		}
		log.Handler().(*Handler).Flush()
		if all := out.take(); !strings.Contains(all, "good: and 5 more") {
			t.Errorf("at the end: %s", all)
		}
		time.Sleep(2 * window)
		if all := out.take(); all != "" {
			t.Errorf("it is told twice: %s", all)
		}
	})
}

// TestTexts has any number of texts: their record is bounded, and so is the log.
func TestTexts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out buffer
		h := New(slog.NewTextHandler(&out, nil))
		log := slog.New(h)
		for minute := range 3 {
			for i := range 3 * mostTexts {
				log.Warn(fmt.Sprint("text ", minute, " ", i))
			}
			h.lines.mu.Lock()
			n := len(h.lines.last)
			h.lines.mu.Unlock()
			if n > mostTexts+1 {
				t.Errorf("%d texts are kept", n)
			}
			time.Sleep(window + time.Second)
			all := out.take()
			if n := strings.Count(all, "\n"); n > mostTexts+mostBad+2 || !strings.Contains(all, "more lines of other texts") {
				t.Errorf("minute %d: %d lines", minute, n)
			}
		}
	})
}
