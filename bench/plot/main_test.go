package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// The picture in the README shows the figures of the table beside it.
func TestUpToDate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("..", "results")
	table, err := os.ReadFile(filepath.Join(dir, "compare.md"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := draw(table)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "compare.svg"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("compare.svg is not that of compare.md (%v): run go run ./bench/plot", err)
	}
	for d := xml.NewDecoder(bytes.NewReader(want)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// A table without figures is an error, and not an empty picture.
func TestNoTable(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"", "| | a | b | c | d |\n|---|---|---|---|---|\n", "| | a | b | c | d |\n| x | y | 1 | 2 | 3 |\n"} {
		if _, err := draw([]byte(table)); err == nil {
			t.Errorf("%q: no error", table)
		}
	}
}
