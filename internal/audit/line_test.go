package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"reflect"
	"strconv"
	"testing"
	"time"
)

// The encoder of lines writes the same JSON as slog.
func TestLineAsSlog(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 1, 2, 3, 456789000, time.UTC)
	var want bytes.Buffer
	var attrs record
	var got jsonLine
	got.begin(at, messageCall)
	for _, to := range []form{&attrs, &got} {
		to.text("plain", "a b")
		to.text("quoted", "\"<\n\x00é\xff\\")
		to.integer("code", -32602)
		to.integer("stream", math.MaxInt64)
		for i, d := range []time.Duration{0, 305, time.Millisecond, 1500 * time.Millisecond, 1e9 + 1, time.Hour, 90*time.Hour + 10*time.Microsecond} {
			to.seconds("seconds"+strconv.Itoa(i), d)
		}
		to.yes("taken_over")
		to.raw("arguments", json.RawMessage("{ \"a\" :\n[1, \"<\"] }"))
	}
	got.end()
	r := slog.NewRecord(at, slog.LevelInfo, "call", 0)
	r.AddAttrs(attrs...)
	if err := slog.NewJSONHandler(&want, nil).Handle(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	var is, like map[string]any
	if err := json.Unmarshal(got, &is); err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	if err := json.Unmarshal(want.Bytes(), &like); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(is, like) || bytes.IndexByte(got, '\n') != len(got)-1 {
		t.Errorf("got  %swant %s", got, want.Bytes())
	}
}
