package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	const (
		pass = `{"id":"a","status":"SUCCESS"}`
		warn = `{"id":"b","status":"WARNING","errorMessage":"should have"}`
		info = `{"id":"c","status":"INFO"}`
	)
	two, three := "["+pass+","+pass+"]", "["+pass+","+pass+","+pass+"]"
	for _, tt := range []struct {
		name, wantErr string
		scenarios     int
		odd           string // the first scenario's checks
	}{
		{name: "all there", scenarios: 27, odd: "[" + pass + "," + pass + "," + pass + "," + pass + "]"},
		{name: "a warning", scenarios: 27, odd: "[" + pass + "," + warn + "]", wantErr: "0 failures, 1 warnings"},
		{name: "a scenario missing", scenarios: 26, odd: three, wantErr: "only 26 of 27 scenarios"},
		{name: "nothing tested", scenarios: 27, odd: "[" + info + "]", wantErr: "of 56 checks"},
		{name: "no JSON", scenarios: 27, odd: "oops", wantErr: "read results"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for i := range tt.scenarios {
				checks := two
				if i == 0 {
					checks = tt.odd
				}
				sub := filepath.Join(dir, "s"+strconv.Itoa(i))
				if err := os.Mkdir(sub, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(sub, "checks.json"), []byte(checks), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := judge(&bytes.Buffer{}, "2025-06-18", dir)
			if tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
				t.Fatalf("judge: %v, want %q", err, tt.wantErr)
			}
		})
	}
}
