package jetstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/stream"
)

// Error codes of JetStream that are handled.
const (
	codeAccount    = 10002 // the account has no room
	codeNoPeers    = 10005 // too few servers for as many replicas
	codeNotReady   = 10008 // no leader of the cluster
	codeNoLeader   = 10009
	codeResources  = 10023 // the server has no room
	codeNoMessage  = 10037
	codeStorage    = 10047 // the server has no room for a new stream
	codeTooLarge   = 10054
	codeNotDeleted = 10057 // there is no such message
	codeNoStream   = 10059
	codeInUse      = 10058 // the stream is there, with other settings
	codeWrongLast  = 10071 // the subject's last message is another
	codeReplicas   = 10074 // this server is not in a cluster
	codeNotStored  = 10077
	codeInFlight   = 10164 // another message for the subject is being stored
)

// code returns JetStream's code for an error, or 0.
func code(err error) int {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return int(api.ErrorCode)
	}
	return 0
}

// A message is to be stored in a stream.
type message struct {
	subject string
	last    uint64 // the place that the subject's last message must have
	any     bool   // last is not checked
	ttl     time.Duration
	removed bool // it marks the removal of a value
	data    []byte
}

// Headers of a message.
const (
	headerLast    = jetstream.ExpectedLastSubjSeqHeader
	headerTTL     = jetstream.MsgTTLHeader
	headerMarker  = "Nats-Marker-Reason" // servers set it in messages that mark the end of a value
	headerRemoved = "Holdfast-Removed"   // our own, with the same meaning
)

// wrongLast is the error of a subject with another last message than expected. at is its place.
type wrongLast struct{ at uint64 }

func (e *wrongLast) Error() string { return fmt.Sprintf("the last one is %d", e.at) }

func (e *wrongLast) Unwrap() error { return stream.ErrConflict }

// publish stores a message. It tries again only if another message for the same
// subject was being stored, since then this one was not.
func (l *Log) publish(ctx context.Context, m message) (uint64, error) {
	if len(m.data) > l.MaxFrame() {
		return 0, fmt.Errorf("%w: %d bytes, and %d are the most", stream.ErrTooLarge, len(m.data), l.MaxFrame())
	}
	msg := &nats.Msg{Subject: m.subject, Header: m.header(), Data: m.data}
	ctx, cancel := context.WithTimeout(ctx, l.attempt)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		at, err := l.request(ctx, msg)
		if code(err) == codeInFlight && pause(ctx, wait) {
			continue
		}
		// An error that names another last message is an acknowledgement too: an
		// earlier attempt may have stored that message.
		if l.disk != nil && (err == nil || code(err) == codeWrongLast) {
			if err := l.disk.acknowledge(ctx); err != nil {
				return 0, err
			}
		}
		return at, classify(err)
	}
}

func (m message) header() nats.Header {
	h := make(nats.Header, 1)
	if !m.any {
		h[headerLast] = []string{strconv.FormatUint(m.last, 10)}
	}
	if m.ttl > 0 {
		seconds := (m.ttl + time.Second - 1) / time.Second
		h[headerTTL] = []string{strconv.FormatInt(int64(seconds), 10)}
	}
	if m.removed {
		h[headerRemoved] = []string{"1"}
	}
	return h
}

// request publishes a message once, and returns its sequence.
func (l *Log) request(ctx context.Context, m *nats.Msg) (uint64, error) {
	reply, err := l.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return 0, err
	}
	return parseAck(reply.Data)
}

// parseAck reads the answer of a stream's leader. Nearly always it is one line, for
// which a JSON parser would take longer than the rest of publish.
func parseAck(data []byte) (uint64, error) {
	if at := bytes.LastIndex(data, []byte(`"seq":`)); at > 0 && !bytes.Contains(data, []byte(`"error"`)) {
		digits := bytes.TrimRight(bytes.TrimLeft(data[at+len(`"seq":`):], " "), "} \r\n")
		if n, err := strconv.ParseUint(string(digits), 10, 64); err == nil && n > 0 {
			return n, nil
		}
	}
	var ack struct {
		Error *jetstream.APIError `json:"error"`
		Seq   uint64              `json:"seq"`
	}
	switch err := json.Unmarshal(data, &ack); {
	case err != nil:
		return 0, fmt.Errorf("reading an acknowledgement: %w", err)
	case ack.Error != nil:
		return 0, ack.Error
	case ack.Seq == 0:
		return 0, errors.New("an acknowledgement without a sequence")
	}
	return ack.Seq, nil
}

// classify maps an error of publishing to one of package stream.
func classify(err error) error {
	if err == nil {
		return nil
	}
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		if errors.Is(err, nats.ErrMaxPayload) {
			return fmt.Errorf("%w: %w", stream.ErrTooLarge, err)
		}
		return unavailable(err)
	}
	switch api.ErrorCode {
	case codeWrongLast:
		_, digits, _ := strings.Cut(api.Description, ": ")
		at, err := strconv.ParseUint(digits, 10, 64)
		if err != nil {
			return unavailable(api)
		}
		return &wrongLast{at}
	case codeTooLarge:
		return fmt.Errorf("%w: %w", stream.ErrTooLarge, err)
	case codeNotStored:
		if !strings.HasPrefix(api.Description, "maximum ") {
			return unavailable(err)
		}
		return fmt.Errorf("%w: %w", stream.ErrFull, err)
	case codeAccount, codeResources, codeStorage:
		return fmt.Errorf("%w: %w", stream.ErrFull, err)
	}
	return unavailable(err)
}
