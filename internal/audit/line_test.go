package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
	"testing"
	"time"
)

// Lines of JSON say the same as those of slog.
func TestLineAsSlog(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 1, 2, 3, 456789000, time.UTC)
	attrs := []slog.Attr{
		slog.String("plain", "a b"), slog.String("quoted", "\"<\n\x00é\xff\\"), slog.Int("code", -32602), slog.Uint64("stream", 1<<63),
		slog.Float64("seconds", 0.000000305), slog.Float64("none", 0), slog.Bool("taken_over", true),
		slog.Any("arguments", json.RawMessage("{ \"a\" :\n[1, \"<\"] }")),
	}
	var want bytes.Buffer
	r := slog.NewRecord(at, slog.LevelInfo, "call", 0)
	r.AddAttrs(attrs...)
	if err := slog.NewJSONHandler(&want, nil).Handle(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	got := appendJSON(nil, at, attrs)
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
