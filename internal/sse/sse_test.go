package sse

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// events reads all events, and returns the error at their end.
func events(r io.Reader, max int) ([]Event, error) {
	var all []Event
	for rd := NewReader(r, max); ; {
		ev, err := rd.Next()
		if err != nil {
			return all, err
		}
		all = append(all, ev)
	}
}

// message returns an event with data alone.
func message(data string) Event { return Event{Data: []byte(data), HasData: true, Retry: -1} }

func TestReader(t *testing.T) {
	tests := []struct {
		name, text string
		want       []Event
	}{
		{"nothing", "", nil},
		{"blank lines", "\n\r\n\r\r\n", nil},
		{"LF", "data: a\n\n", []Event{message("a")}},
		{"CR", "data: a\r\r", []Event{message("a")}},
		{"CRLF", "data: a\r\n\r\n", []Event{message("a")}},
		{"CRLF is one end", "data: a\r\ndata: b\r\n\r\n", []Event{message("a\nb")}},
		{"LF CR is two ends", "data: a\n\rdata: b\n\n", []Event{message("a"), message("b")}},
		{"all ends mixed", "data: a\rdata: b\ndata: c\r\n\rdata: d\n\n", []Event{message("a\nb\nc"), message("d")}},
		{"byte order mark", "\ufeffdata: a\n\n", []Event{message("a")}},
		{"byte order mark before a blank line", "\ufeff\ndata: a\n\n", []Event{message("a")}},
		{"only one byte order mark", "\ufeff\ufeffdata: a\n\n", nil},
		{"byte order mark later", "data: a\n\n\ufeffdata: b\n\n", []Event{message("a")}},
		{"byte order mark in a value", "data: \ufeff\n\n", []Event{message("\ufeff")}},
		{"comments", ": x\n:\ndata: a\n: data: b\n\n:\n\n", []Event{message("a")}},
		{"one leading blank is taken off", "data:  a \n\n", []Event{message(" a ")}},
		{"no blank", "data:a\n\n", []Event{message("a")}},
		{"tab is no blank", "data:\ta\n\n", []Event{message("\ta")}},
		{"colon in a value", "data: a: b:\n\n", []Event{message("a: b:")}},
		{"blank before the colon", "data : a\n\n", nil},
		{"blank before the name", " data: a\n\n", nil},
		{"field without a colon", "data\n\n", []Event{{HasData: true, Retry: -1}}},
		{"two of them", "data\ndata\n\n", []Event{message("\n")}},
		{"empty data", "data:\n\n", []Event{{HasData: true, Retry: -1}}},
		{"empty line of data", "data: a\ndata:\ndata: b\n\n", []Event{message("a\n\nb")}},
		{"unknown fields", "foo: 1\nDATA: b\nEvent\n\n", nil},
		{"unknown field beside data", "foo: 1\ndata: a\n\n", []Event{message("a")}},
		{"no blank line at the end", "data: a\n\ndata: b\n", []Event{message("a")}},
		{"cut in a line", "data: a\n\ndata: b", []Event{message("a")}},
		{"cut in a CRLF", "data: a\r\n\r", []Event{message("a")}},
		{
			"all fields", "event: e\nid: 1\nretry: 250\ndata: a\n\n",
			[]Event{{Name: "e", ID: "1", Retry: 250 * time.Millisecond, Data: []byte("a"), HasData: true}},
		},
		{"the last counts", "event: e\nid: 1\nevent: f\nid: 2\n\n", []Event{{Name: "f", ID: "2", Retry: -1}}},
		{"an event keeps nothing of the last", "id: 1\nevent: e\nretry: 1\ndata: a\n\ndata: b\n\n", []Event{
			{Name: "e", ID: "1", Retry: time.Millisecond, Data: []byte("a"), HasData: true}, message("b"),
		}},
		{"id with NUL is ignored", "id: 1\nid: 2\x003\ndata: a\n\n", []Event{
			{ID: "1", Data: []byte("a"), HasData: true, Retry: -1},
		}},
		{"nothing but an id with NUL", "id: \x00\n\n", nil},
		{"empty id", "id\n\n", []Event{{Retry: -1}}},
		{"retry alone", "retry: 3000\n\n", []Event{{Retry: 3 * time.Second}}},
		{"retry of zero", "retry: 000\n\n", []Event{{Retry: 0}}},
		{"retry not of digits", "retry: 1s\nretry: -1\nretry: +1\nretry:  1\nretry: 1_0\nretry: 0x1\nretry:\nretry: ١\n\n", nil},
		{"retry beyond all patience", "retry: 99999999999999999999\n\n", nil},
		{"JSON", `data: {"a":"\n"}` + "\n\n", []Event{message(`{"a":"\n"}`)}},
	}
	readers := map[string]func(io.Reader) io.Reader{
		"at once":      func(r io.Reader) io.Reader { return r },
		"byte by byte": iotest.OneByteReader,
		"data and EOF": iotest.DataErrReader,
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for name, of := range readers {
				got, err := events(of(strings.NewReader(test.text)), 1<<10)
				if !errors.Is(err, io.EOF) {
					t.Errorf("%s: got error %v", name, err)
				}
				if !reflect.DeepEqual(got, test.want) {
					t.Errorf("%s: got %+v, want %+v", name, got, test.want)
				}
			}
		})
	}
}

func TestReaderDataIsItsOwn(t *testing.T) {
	got, _ := events(strings.NewReader("data: a\n\ndata: b\n\n"), 1<<10)
	if len(got) != 2 || string(got[0].Data) != "a" || string(got[1].Data) != "b" {
		t.Errorf("got %+v", got)
	}
}

func TestReaderLimit(t *testing.T) {
	line := func(n int) string { return "data: " + strings.Repeat("x", n-6) + "\n" }
	tests := []struct {
		name, text string
		events     int
		err        error
	}{
		{"a line that fits", line(100) + "\n", 1, io.EOF},
		{"a line that does not", line(101) + "\n", 0, ErrTooLong},
		{"a line without an end", strings.Repeat("x", 1<<20), 0, ErrTooLong},
		{"lines that fit", line(50) + line(50) + "\n", 1, io.EOF},
		{"lines that do not", line(50) + line(51) + "\n", 0, ErrTooLong},
		{"fields that mean nothing", strings.Repeat("x\n", 101), 0, ErrTooLong},
		{"the limit is each event's", strings.Repeat(line(100)+"\n", 5), 5, io.EOF},
		{"any number of comments", strings.Repeat(": keep-alive\n", 50) + line(100) + "\n", 1, io.EOF},
		{"a comment in an event", line(90) + ": " + strings.Repeat("x", 90) + "\n" + line(10) + "\n", 1, io.EOF},
		{"a comment in too long an event", line(90) + ": x\n" + line(11) + "\n", 0, ErrTooLong},
		{"a comment without an end", ":" + strings.Repeat("x", 1<<20), 0, ErrTooLong},
	}
	for _, test := range tests {
		got, err := events(strings.NewReader(test.text), 100)
		if len(got) != test.events || !errors.Is(err, test.err) {
			t.Errorf("%s: %d events and %v, want %d and %v", test.name, len(got), err, test.events, test.err)
		}
	}
	// The data is far longer than the reader's buffer.
	long := strings.Repeat("y", 300<<10)
	got, err := events(strings.NewReader("data: "+long+"\n\ndata: a\n\n"), 1<<20)
	if len(got) != 2 || string(got[0].Data) != long || !errors.Is(err, io.EOF) {
		t.Errorf("long line: %d events and %v", len(got), err)
	}
}

// A reader returns the error that broke a stream, after the complete events.
func TestReaderError(t *testing.T) {
	broken := errors.New("broken")
	got, err := events(io.MultiReader(strings.NewReader("data: a\n\ndata: b\n"), iotest.ErrReader(broken)), 100)
	if len(got) != 1 || !errors.Is(err, broken) {
		t.Errorf("%d events and %v", len(got), err)
	}
}

// An event that ends in CR is returned at once, whether or not a LF follows.
func TestReaderDoesNotWaitForLF(t *testing.T) {
	pr, pw := io.Pipe()
	defer pr.Close()
	go func() {
		_, _ = io.WriteString(pw, "data: a\r\n\r") // the writer stays silent afterwards
	}()
	ev, err := NewReader(pr, 100).Next()
	if err != nil || string(ev.Data) != "a" {
		t.Errorf("got %+v and %v", ev, err)
	}
}

func TestAppend(t *testing.T) {
	tests := []struct {
		got  []byte
		text string
		want []Event
	}{
		{
			AppendMessage([]byte("\n"), []byte("i"), []byte(`{}`)), "\nevent: message\nid: i\ndata: {}\n\n",
			[]Event{{Name: "message", ID: "i", Data: []byte(`{}`), HasData: true, Retry: -1}},
		}, {
			AppendMessage(nil, nil, []byte(`{}`)), "event: message\ndata: {}\n\n",
			[]Event{{Name: "message", Data: []byte(`{}`), HasData: true, Retry: -1}},
		}, {
			AppendPriming(nil, []byte("i"), 1500*time.Millisecond+time.Microsecond), "id: i\nretry: 1500\ndata: \n\n",
			[]Event{{ID: "i", HasData: true, Retry: 1500 * time.Millisecond}},
		}, {
			AppendPriming(nil, []byte("i"), 0), "id: i\nretry: 0\ndata: \n\n",
			[]Event{{ID: "i", HasData: true}},
		}, {
			AppendPriming(nil, []byte("i"), -1), "id: i\ndata: \n\n",
			[]Event{{ID: "i", HasData: true, Retry: -1}},
		},
		{AppendRetry(nil, time.Second), "retry: 1000\n\n", []Event{{Retry: time.Second}}},
		{
			AppendEvent(nil, "endpoint", "/m?s=1"), "event: endpoint\ndata: /m?s=1\n\n",
			[]Event{{Name: "endpoint", Data: []byte("/m?s=1"), HasData: true, Retry: -1}},
		},
		{[]byte(Comment), ": keep-alive\n\n", nil},
	}
	for _, test := range tests {
		if string(test.got) != test.text {
			t.Errorf("got %q, want %q", test.got, test.text)
		}
		got, err := events(bytes.NewReader(test.got), 1<<10)
		if !reflect.DeepEqual(got, test.want) || !errors.Is(err, io.EOF) {
			t.Errorf("%q: got %+v and %v, want %+v", test.got, got, err, test.want)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("\ufeffid: 1\r\nevent: e\rretry: 5\ndata: a\ndata\n\n: c\n\n"))
	f.Add([]byte("id: \x00\nretry: x\n\n\r\n\r\rdata"))
	f.Add(bytes.Repeat([]byte("data: 0123456789\n"), 10))
	f.Fuzz(func(t *testing.T, text []byte) {
		const limit = 64
		whole, err := events(bytes.NewReader(text), limit)
		if !errors.Is(err, io.EOF) && !errors.Is(err, ErrTooLong) {
			t.Fatal(err)
		}
		for _, ev := range whole {
			if n := len(ev.ID) + len(ev.Name) + len(ev.Data); n > limit {
				t.Fatalf("an event of %d bytes: %+v", n, ev)
			}
			if strings.ContainsAny(ev.ID, "\r\n\x00") || strings.ContainsAny(ev.Name, "\r\n") || bytes.ContainsAny(ev.Data, "\r") {
				t.Fatalf("an end of a line within %+v", ev)
			}
		}
		// The result does not depend on how the text is cut into reads.
		slow, slowErr := events(iotest.OneByteReader(bytes.NewReader(text)), limit)
		if !reflect.DeepEqual(slow, whole) || !errors.Is(slowErr, err) {
			t.Fatalf("byte by byte: %+v and %v, want %+v and %v", slow, slowErr, whole, err)
		}
	})
}

func FuzzRoundTrip(f *testing.F) {
	f.Add("id.1.a", `{"jsonrpc":"2.0"}`, int64(15))
	f.Add(" leading", " : data", int64(-1))
	f.Add("", "", int64(0))
	f.Fuzz(func(t *testing.T, id, data string, ms int64) {
		if strings.ContainsAny(id, "\r\n\x00") || strings.ContainsAny(data, "\r\n") {
			t.Skip("not to be had from the callers")
		}
		retry := time.Duration(ms%(1<<39)) * time.Millisecond
		text := AppendMessage(nil, []byte(id), []byte(data))
		text = AppendPriming(text, []byte(id), retry)
		text = append(text, Comment...)
		text = AppendEvent(text, "endpoint", data)
		text = AppendRetry(text, max(retry, 0))
		got, err := events(bytes.NewReader(text), len(text))
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		bytesOf := func(s string) []byte { return append([]byte(nil), s...) }
		want := []Event{
			{Name: "message", ID: id, Data: bytesOf(data), HasData: true, Retry: -1},
			{ID: id, HasData: true, Retry: max(retry, -1)},
			{Name: "endpoint", Data: bytesOf(data), HasData: true, Retry: -1},
			{Retry: max(retry, 0)},
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	one := AppendMessage(nil, []byte("0123456789abcdef1.1.a"), bytes.Repeat([]byte("x"), 250))
	text := bytes.Repeat(one, 100)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if got, err := events(bytes.NewReader(text), 1<<20); len(got) != 100 || !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
	}
}

// Skip returns all data of an event that is too long, or that has no room. The next event is read afterwards.
func TestSkip(t *testing.T) {
	long := strings.Repeat("y", 5000)
	tests := []struct{ name, event, data string }{
		{"one line", "data: " + long + "\n", long},
		{"no blank", "data:" + long + "\n", long},
		{"an id before it", "id: 1\nevent: message\ndata: " + long + "\n", long},
		{"an id after it", "data: " + long + "\nid: 1\n", long},
		{"several lines", "data: " + long + "\ndata: a\ndata:b\nid: 2\ndata: " + long + "\n", long + "ab" + long},
		{"short lines", strings.Repeat("data: 0123456789\n", 1000), strings.Repeat("0123456789", 1000)},
		{"a comment in it", "data: " + long + "\n: data: x\ndata: z\n", long + "z"},
		{"nothing that is data", "x: " + long + "\n", ""},
		{"CRLF", "data: " + long + "\r\ndata: a\r\n", long + "a"},
		{"CR", "data: " + long + "\rdata: a\r", long + "a"},
	}
	for _, test := range tests {
		for _, how := range []string{"too long", "no room"} {
			blank := "\n"
			if strings.Contains(test.name, "CR") {
				if strings.HasSuffix(test.event, "\r\n") {
					blank = "\r\n"
				} else {
					blank = "\r"
				}
			}
			r := NewReader(iotest.OneByteReader(strings.NewReader("data: first\n\n"+test.event+blank+"data: next\n\n")), 4100)
			full := errors.New("full")
			if how == "no room" {
				r.max = 1 << 20
				r.Room = func(size int) error {
					if size > 4500 {
						return full
					}
					return nil
				}
			}
			if ev, err := r.Next(); err != nil || string(ev.Data) != "first" {
				t.Fatalf("%s, %s: the first event: %q, %v", test.name, how, ev.Data, err)
			}
			if _, err := r.Next(); !errors.Is(err, ErrTooLong) && !errors.Is(err, full) {
				t.Fatalf("%s, %s: %v", test.name, how, err)
			}
			var data bytes.Buffer
			if err := r.Skip(&data); err != nil || strings.ReplaceAll(data.String(), "\n", "") != test.data {
				t.Errorf("%s, %s: %d bytes of data, want %d: %v", test.name, how, data.Len(), len(test.data), err)
			}
			if ev, err := r.Next(); err != nil || string(ev.Data) != "next" {
				t.Errorf("%s, %s: the next event: %q, %v", test.name, how, ev.Data, err)
			}
		}
	}
}
