package engine_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/engine"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/testlong"
	"holdfast/stream"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(testlong.Either(8, 4)) // with -long also Redis and contests
	goleak.VerifyTestMain(m, natstest.Left()...)
}

func TestOpen(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"memory:", "MEMORY:"} {
		st, err := engine.Open(t.Context(), url, engine.Options{})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if _, err := st.Create(t.Context(), "a", nil); err != nil {
			t.Errorf("%s: %v", url, err)
		}
		if err := st.Close(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// The error for a wrong URL says what is wrong, and does not contain the URL's password.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                               "want an engine's URL",
		"memory":                         "want an engine's URL",
		"/var/lib/holdfast":              "want an engine's URL",
		"rocks://me:hunter2@host":        `store "rocks:": no such engine`,
		"rocks:me:hunter2@host":          `store "rocks:"`,
		"rocks://me:hunter2@ho st":       "no such engine",
		"rocks://me:hunter2/x@host":      "no such engine",
		":":                              "want an engine",
		"memory:hunter2":                 "nothing may follow",
		"memory://host":                  "nothing may follow",
		"memory:?keep=hunter2":           "nothing may follow",
		"memory:#hunter2":                "nothing may follow",
		"rocks://me:hunt%er2@host":       "no such engine",
		"rocks://host?password=hunter2":  "no such engine",
		"rocks://me@host/\x7f?k=hunter2": "no such engine",
	} {
		st, err := engine.Open(t.Context(), url, engine.Options{Keep: time.Minute})
		if err == nil {
			t.Errorf("%q: opened", url)
			_ = st.Close()
			continue
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %q, want %q", url, err, want)
		}
		if strings.Contains(err.Error(), "hunt") {
			t.Errorf("%q: tells the password: %v", url, err)
		}
	}
}

// Open passes Options.Keep to the store.
func TestOpenKeep(t *testing.T) {
	t.Parallel()
	st, err := engine.Open(t.Context(), "memory:", engine.Options{Keep: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := st.Create(t.Context(), "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Append(t.Context(), l, []stream.Record{{Number: 1, Entry: stream.Entry{Seq: 1, Last: true}}}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; {
		_, _, err := st.Bounds(t.Context(), stream.ID{Session: "a", Number: 1})
		if errors.Is(err, stream.ErrNotFound) {
			return
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("still there: %v", err)
		}
		time.Sleep(time.Millisecond) // polling: the store does not report the removal
	}
}
