package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// After SIGHUP the audit goes on in a new file, and the old file loses no line.
func TestAuditReopened(t *testing.T) { // alone: the signal is for the whole process
	name := filepath.Join(t.TempDir(), "audit.jsonl")
	l, err := (&auditFlags{file: name}).open()
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := l.WriteLines([]byte(`{"msg":"` + text + "\"}\n")); err != nil {
			t.Fatal(err)
		}
	}
	write("before")
	if err := os.Rename(name, name+".1"); err != nil {
		t.Fatal(err)
	}
	write("renamed")
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		is, err := os.Stat(name)
		l.file.mu.Lock()
		open, _ := l.file.to.(*os.File).Stat()
		l.file.mu.Unlock()
		if err == nil && os.SameFile(is, open) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("there is no new file")
		}
	}
	write("after")
	if err := l.close(); err != nil {
		t.Error(err)
	}
	for file, want := range map[string][]string{name + ".1": {"before", "renamed"}, name: {"after"}} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for text := range strings.Lines(string(data)) {
			var line struct{ Msg string }
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			got = append(got, line.Msg)
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s has %v, want %v", filepath.Base(file), got, want)
		}
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestAuditRefused(t *testing.T) {
	t.Parallel()
	if _, err := (&auditFlags{file: filepath.Join(t.TempDir(), "no", "such", "folder")}).open(); err == nil || !strings.Contains(err.Error(), "--audit") {
		t.Errorf("got %v", err)
	}
	if err := (&auditFlags{}).check(true); err == nil {
		t.Error("arguments without an audit are taken")
	}
	if l, err := (&auditFlags{}).open(); l != nil || err != nil {
		t.Errorf("none: %v, %v", l, err)
	}
}

// The figures of the process are served beside the probes.
func TestServeMetrics(t *testing.T) {
	t.Parallel()
	a := mcptest.Must(listenAdmin("127.0.0.1:0", false, nil))(t)
	if a.serveMetrics() == nil {
		t.Fatal("nothing can be registered")
	}
	w := httptest.NewRecorder()
	a.mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "go_goroutines") {
		t.Errorf("%d: %.200s", w.Code, w.Body)
	}
	if err := a.close(); err != nil {
		t.Error(err)
	}
	if none, err := listenAdmin("", false, nil); err != nil || none.serveMetrics() != nil {
		t.Errorf("without --admin: %v", err)
	}
}
