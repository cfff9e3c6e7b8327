package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	pass  = `{"id":"a","status":"SUCCESS"}`
	other = `{"id":"b","status":"SUCCESS"}`
	warn  = `{"id":"c","status":"WARNING","errorMessage":"should have"}`
	info  = `{"id":"d","status":"INFO"}`
)

func TestJudge(t *testing.T) {
	t.Parallel()
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
			t.Parallel()
			dir := t.TempDir()
			for i := range tt.scenarios {
				checks := two
				if i == 0 {
					checks = tt.odd
				}
				leave(t, dir, "s"+strconv.Itoa(i), map[string]string{"checks.json": checks})
			}
			expect(t, "server", dir, tt.wantErr)
		})
	}
}

func TestJudgeClient(t *testing.T) {
	t.Parallel()
	const done = "done: it\n"
	var fifty strings.Builder
	for i := range 50 {
		fifty.WriteString(`{"id":"` + strconv.Itoa(i) + `","status":"SUCCESS"},`)
	}
	for _, tt := range []struct {
		name, wantErr  string
		stdout, stderr string // of the scenario in a nested directory
		checks         string
	}{
		{name: "all there", stdout: done, checks: "[" + pass + "]"},
		{name: "more of the same", stdout: done, checks: "[" + pass + "," + pass + "]"},
		{name: "a warning", stdout: done, checks: "[" + pass + "," + warn + "]", wantErr: "1 warnings"},
		{name: "a crash", stderr: "panic: oh\n", checks: "[" + pass + "]", wantErr: "1 clients did not finish"},
		{name: "a kill", checks: "[" + pass + "]", wantErr: "1 clients did not finish"},
		{name: "an end after it was done", stdout: done + "exit", checks: "[" + pass + "]", wantErr: "1 clients did not finish"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			leave(t, dir, "many", map[string]string{"checks.json": "[" + fifty.String() + info + "]", "stdout.txt": done})
			for _, s := range []string{"s1", "s2", "s3"} {
				leave(t, dir, s, map[string]string{"checks.json": "[]", "stdout.txt": done})
			}
			leave(t, dir, "auth/odd", map[string]string{
				"checks.json": tt.checks, "stdout.txt": tt.stdout, "stderr.txt": tt.stderr,
			})
			out := expect(t, "client", dir, tt.wantErr)
			if !strings.Contains(out, strings.TrimSpace(tt.stderr)) {
				t.Errorf("printed %q, want %q in it", out, tt.stderr)
			}
		})
	}
	t.Run("only more of the same", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		for i := range 5 {
			leave(t, dir, "s"+strconv.Itoa(i), map[string]string{
				"checks.json": "[" + strings.Repeat(pass+","+other+",", 30) + info + "]", "stdout.txt": done,
			})
		}
		expect(t, "client", dir, "only 10 of 51 checks")
	})
}

// leave writes the files that the suite leaves for a scenario.
func leave(t *testing.T, dir, scenario string, files map[string]string) {
	t.Helper()
	sub := filepath.Join(dir, scenario)
	if err := os.MkdirAll(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(sub, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// expect judges dir as results for 2025-06-18, and returns the printed text.
func expect(t *testing.T, side, dir, wantErr string) string {
	t.Helper()
	var out bytes.Buffer
	err := judge(&out, side, "2025-06-18", dir)
	if wantErr == "" && err != nil || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)) {
		t.Fatalf("judge: %v, want %q\n%s", err, wantErr, out.String())
	}
	return out.String()
}
