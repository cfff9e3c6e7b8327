package jetstream

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"
)

// The most messages of an answer, and the bytes after which it ends: few for frames,
// many for a list. Before the first message the server counts all that match, which
// takes a while if there are a million subjects.
const (
	fewMessages  = 1000
	fewBytes     = 2 << 20
	manyMessages = 50_000
	manyBytes    = 16 << 20
)

// A stored message.
type stored struct {
	at      uint64
	before  uint64 // place of the message before it of the same subject, as its writer knew it
	subject string
	time    time.Time
	removed bool // it marks the removal of a value
	data    []byte
}

func (m *stored) header(h nats.Header) error {
	m.removed = len(h[headerRemoved])+len(h[headerMarker]) > 0
	last := h[headerLast]
	if len(last) == 0 {
		return nil
	}
	var err error
	m.before, err = strconv.ParseUint(last[0], 10, 64)
	return err
}

// last asks a stream's leader for the newest message of a subject. Only the leader
// knows of every acknowledged write.
func (l *Log) last(ctx context.Context, name, subject string) (stored, bool, error) {
	return l.one(ctx, name, fmt.Appendf(nil, `{"last_by_subj":%q}`, subject))
}

// next asks a stream's leader for the oldest message of a subject after a place.
func (l *Log) next(ctx context.Context, name, subject string, after uint64) (stored, bool, error) {
	return l.one(ctx, name, fmt.Appendf(nil, `{"seq":%d,"next_by_subj":%q}`, after+1, subject))
}

func (l *Log) one(ctx context.Context, name string, request []byte) (stored, bool, error) {
	var answer found
	err := l.ask(ctx, "STREAM.MSG.GET."+name, request, &answer)
	if code(err) == codeNoMessage {
		return stored{}, false, nil
	}
	if err != nil {
		return stored{}, false, err
	}
	is := answer.Message
	m := stored{at: is.Seq, subject: is.Subject, time: is.Time, data: answer.data}
	if len(is.Header) > 0 {
		h, err := nats.DecodeHeadersMsg(is.Header)
		if err == nil {
			err = m.header(h)
		}
		if err != nil {
			return stored{}, false, unavailable(fmt.Errorf("reading headers: %w", err))
		}
	}
	return m, true, nil
}

// found is an answer with a message.
type found struct {
	failure
	Message struct {
		Subject string    `json:"subject"`
		Seq     uint64    `json:"seq"`
		Header  []byte    `json:"hdrs"`
		Time    time.Time `json:"time"`
	} `json:"message"`
	data []byte
}

// read decodes an answer. It takes the data of the message, which may be megabytes of
// base64, out before it parses the JSON, as a JSON parser is slow for them.
func (f *found) read(answer []byte) error {
	const name = `"data":"`
	if i := bytes.Index(answer, []byte(name)); i > 0 {
		text, rest, _ := bytes.Cut(answer[i+len(name):], []byte(`"`))
		f.data = make([]byte, base64.StdEncoding.DecodedLen(len(text)))
		n, err := base64.StdEncoding.Decode(f.data, text)
		if err != nil {
			return err
		}
		f.data = f.data[:n]
		answer = slices.Concat(answer[:i], []byte(name+`"`), rest)
	}
	return json.Unmarshal(answer, f)
}

// An answer is decoded from the data of a reply.
type answer interface {
	read(data []byte) error
	failed() error
}

// A failure is the error of an answer, instead of its result.
type failure struct {
	Error *jetstream.APIError `json:"error"`
}

func (f *failure) read(data []byte) error { return json.Unmarshal(data, f) }

func (f *failure) failed() error {
	if f.Error == nil {
		return nil
	}
	return f.Error
}

// ask makes a request to JetStream's API and decodes its answer. The request must
// be safe to repeat: ask repeats it while no leader answers.
func (l *Log) ask(ctx context.Context, what string, request []byte, to answer) error {
	ctx, cancel := context.WithTimeout(ctx, l.reading)
	defer cancel()
	for {
		if err := ctx.Err(); err != nil { // else select could choose an answer although ctx is done
			return unavailable(err)
		}
		m, err := l.answer(ctx, "$JS.API."+what, request)
		if err == nil {
			if err := to.read(m.Data); err != nil {
				return unavailable(fmt.Errorf("reading an answer: %w", err))
			}
			err = to.failed()
		}
		switch {
		case err == nil:
			return nil
		case !transient(err) || !pause(ctx, 20*time.Millisecond):
			return unavailable(err)
		}
	}
}

// answer returns the first answer to a request, and repeats the request while none
// comes: the stream may have had no leader when it came.
func (l *Log) answer(ctx context.Context, subject string, request []byte) (*nats.Msg, error) {
	to, answers, done := l.replies.expect(1)
	defer done()
	for wait := asking; ; wait *= 2 {
		if err := l.nc.PublishRequest(subject, to, request); err != nil {
			return nil, err
		}
		again := time.NewTimer(wait)
		select {
		case m := <-answers:
			again.Stop()
			if m.Header.Get("Status") == "503" {
				return nil, nats.ErrNoResponders
			}
			return m, nil
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil, ctx.Err()
		}
	}
}

// A scan reads many messages, from any server that has the stream. That server may
// lag behind the leader, which has said where the end is: scan asks the leader for
// each message that is missing.
type scan struct {
	*Log
	stream, filter string
	at             uint64 // place of the last message that was read
	end            uint64 // place of the last message to read
	chained        bool   // all messages have one subject, and each names the one before it
	read           bool   // a message was read
}

// turn waits until fewer goroutines read than places allows. The caller must call free.
func (l *Log) turn(ctx context.Context, places *semaphore.Weighted) (free func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, l.reading)
	defer cancel()
	if err := places.Acquire(ctx, 1); err != nil {
		return nil, unavailable(fmt.Errorf("others read: %w", err))
	}
	return func() { places.Release(1) }, nil
}

// run calls yield with the messages until it returns false. It holds no place of the
// semaphore meanwhile.
func (s *scan) run(ctx context.Context, yield func(stored) bool) error {
	for {
		got, pending, err := s.batch(ctx)
		if err != nil {
			return err
		}
		for _, m := range got {
			if !s.follows(m) {
				pending = 0 // this server lacks messages
				break
			}
			if !s.take(m, yield) {
				return nil
			}
		}
		switch {
		case s.at >= s.end && (s.chained || pending == 0):
			return nil
		case len(got) > 0 && pending > 0:
			continue
		}
		m, ok, err := s.next(ctx, s.stream, s.filter, s.at)
		if err != nil || !ok {
			return err // the rest was dropped meanwhile
		}
		if !s.follows(m) {
			return unavailable(fmt.Errorf("messages between %d and %d of %s are lost", s.at, m.at, s.filter))
		}
		if !s.take(m, yield) {
			return nil
		}
	}
}

// follows reports whether m comes right after the last message read, as far as
// known.
func (s *scan) follows(m stored) bool { return !s.chained || !s.read || m.before == s.at }

func (s *scan) take(m stored, yield func(stored) bool) bool {
	s.at, s.read = m.at, true
	return yield(m)
}

// batch reads one answer of many messages. pending is the number of messages after them.
func (s *scan) batch(ctx context.Context) (got []stored, pending uint64, err error) {
	places, most, size := s.listing, manyMessages, manyBytes
	if s.chained {
		places, most, size = s.framing, fewMessages, fewBytes
	}
	free, err := s.turn(ctx, places)
	if err != nil {
		return nil, 0, err
	}
	defer free()
	request := fmt.Appendf(nil, `{"seq":%d,"next_by_subj":%q,"batch":%d,"max_bytes":%d}`, s.at+1, s.filter, most, size)
	subject, answers, done := s.replies.expect(most + 1)
	defer done()
	if err := s.nc.PublishRequest("$JS.API.DIRECT.GET."+s.stream, subject, request); err != nil {
		return nil, 0, unavailable(err)
	}
	silence := time.NewTimer(s.reading)
	defer silence.Stop()
	for {
		select {
		case m := <-answers:
			silence.Reset(s.reading)
			if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 {
				pending, err := ended(status, m.Header)
				return got, pending, err
			}
			is, err := direct(m)
			if err != nil {
				return nil, 0, err
			}
			got = append(got, is)
		case <-silence.C:
			return nil, 0, unavailable(nats.ErrTimeout)
		case <-ctx.Done():
			return nil, 0, unavailable(ctx.Err())
		}
	}
}

// ended reads the message that ends an answer.
func ended(status string, h nats.Header) (pending uint64, err error) {
	switch status {
	case "204":
		pending, err = strconv.ParseUint(h.Get("Nats-Num-Pending"), 10, 64)
	case "404":
	case "503":
		err = nats.ErrNoResponders
	default:
		err = fmt.Errorf("status %s", status)
	}
	if err != nil {
		err = unavailable(fmt.Errorf("reading many messages: %w", err))
	}
	return pending, err
}

// direct decodes one message of an answer.
func direct(m *nats.Msg) (stored, error) {
	is := stored{subject: m.Header.Get(jetstream.SubjectHeader), data: m.Data}
	var err, err2 error
	is.at, err = strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	is.time, err2 = time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer))
	if err := errors.Join(err, err2, is.header(m.Header)); err != nil {
		return is, unavailable(fmt.Errorf("reading a message: %w", err))
	}
	return is, nil
}

// replies are channels for expected answers, by the last token of the subject that
// these go to. All answers come by one subscription.
type replies struct {
	prefix string
	mu     sync.Mutex
	n      uint64
	open   map[string]chan *nats.Msg
}

func (r *replies) start(nc *nats.Conn) error {
	r.prefix = nc.NewInbox() + "."
	r.open = make(map[string]chan *nats.Msg)
	sub, err := nc.Subscribe(r.prefix+"*", r.take)
	if err != nil {
		return err
	}
	return sub.SetPendingLimits(-1, -1)
}

// expect returns a subject for up to most answers, and the channel that gets them
// until done is called.
func (r *replies) expect(most int) (subject string, answers <-chan *nats.Msg, done func()) {
	to := make(chan *nats.Msg, most)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	token := strconv.FormatUint(r.n, 10)
	r.open[token] = to
	return r.prefix + token, to, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.open, token)
	}
}

func (r *replies) take(m *nats.Msg) {
	r.mu.Lock()
	to := r.open[m.Subject[len(r.prefix):]]
	r.mu.Unlock()
	select {
	case to <- m:
	default: // it is no longer expected, or there are more than most
	}
}
