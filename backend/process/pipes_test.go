package process

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// After the deadline a reader still gets the bytes that are in the pipe, and no others.
func TestOutputAfterDeadline(t *testing.T) {
	for name, written := range map[string]int{"nothing": 0, "little": 100, "a full pipe": pipeSize} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer closePipes(r, w)
			mcptest.Must(w.WriteString(strings.Repeat("x", written)))(t)
			o := newOutput(r)
			o.endBy(time.Now().Add(-time.Second))
			got, err := io.ReadAll(o)
			if len(got) != written || err != nil {
				t.Errorf("got %d bytes of %d, %v", len(got), written, err)
			}
		})
	}
}

// A descendant that writes without end does not block the reader.
func TestOutputEndless(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		for err := error(nil); err == nil; {
			_, err = w.WriteString(strings.Repeat("x", 1000))
		}
	}()
	o := newOutput(r)
	o.endBy(time.Now())
	_, err = io.Copy(io.Discard, o)
	if err != nil {
		t.Error(err)
	}
	closePipes(r)
	<-written
	closePipes(w)
}

func TestReadLine(t *testing.T) {
	const limit = 40
	full := strings.Repeat("f", limit)
	read := func(text string) *lines {
		return &lines{r: bufio.NewReaderSize(strings.NewReader(text), 16), limit: limit}
	}
	l := read("a\n\n" + full + "\r\n" + full + "\nlast")
	for _, want := range []string{"a\n", "\n", full + "\r\n", full + "\n"} {
		if got, err := l.next(); string(got) != want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	if got, err := l.next(); string(got) != "last" || !errors.Is(err, io.EOF) {
		t.Errorf("got %q, %v", got, err)
	}
	for _, long := range []string{full + "f\n", full + "f\r\n", full + full + full} {
		if _, err := read(long).next(); !errors.Is(err, errTooLong) {
			t.Errorf("%q: got %v, want %v", long, err, errTooLong)
		}
	}
}

func TestQueue(t *testing.T) {
	var q queue
	q.init(10)
	put := func(text string, want bool) {
		t.Helper()
		if err := q.put([]byte(text)); (err == nil) != want {
			t.Errorf("put %q: %v", text, err)
		}
	}
	next := func(want string) {
		t.Helper()
		if raw, ok := q.next(); string(raw) != want || !ok {
			t.Errorf("next: %q, %v, want %q", raw, ok, want)
		}
	}
	put("larger than the queue", true)
	put("", false)
	next("larger than the queue")
	put("", false) // the line is incomplete
	for range 100 {
		q.mu.Lock()
		q.size, q.writing = q.size-q.writing, 0
		q.mu.Unlock()
		put("1", true)
		put("22", true)
		put("333", true)
		put("4", false)
		next("1")
		next("22")
		next("333")
	}
	if cap(q.waiting) > 8 {
		t.Errorf("the queue has room for %d messages after holding 3", cap(q.waiting))
	}
	ended := errors.New("ended")
	q.close(ended)
	q.close(errors.New("again"))
	if err := q.put([]byte("1")); !errors.Is(err, ended) {
		t.Errorf("got %v, want %v", err, ended)
	}
	if _, ok := q.next(); ok {
		t.Error("a closed queue gives a message")
	}
}
