package jetstream

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// listMessages is how many messages of a list are asked for at a time.
	listMessages = 256
	// idleList is after how long without requests a server drops the consumer of a list.
	idleList = time.Minute
)

// List reads all values under a prefix. A value that is put meanwhile may come twice.
func (l *Log) List(ctx context.Context, prefix string, yield func(string, []byte, uint64) bool) error {
	filter := l.valueSubject(prefix) + ">"
	end, ok, err := l.last(ctx, l.values, filter)
	if err != nil || !ok {
		return err
	}
	each := func(m stored) bool {
		return m.removed || yield(strings.TrimPrefix(m.subject, l.valueSubject("")), m.data, m.at)
	}
	if l.server != nil {
		return l.pull(ctx, filter, end.at, each)
	}
	s := scan{Log: l, stream: l.values, filter: filter, end: end.at}
	return s.run(ctx, each)
}

// pull reads the values' messages up to a place, through a consumer. For one answer of
// many messages, as a scan asks for, the server would need about 0.1 ms for each message,
// and meanwhile neither store nor read anything else: there is one connection, and the
// server does not answer and write at the same time. In a cluster a scan takes another
// server's time, and the servers would have to agree on a consumer.
func (l *Log) pull(ctx context.Context, filter string, end uint64, yield func(stored) bool) error {
	free, err := l.turn(ctx, l.listing)
	if err != nil {
		return err
	}
	defer free()
	name := strings.ToLower(rand.Text())
	config, err := json.Marshal(map[string]any{
		"stream_name": l.values,
		"config": map[string]any{
			"name": name, "filter_subject": filter, "deliver_policy": "all", "ack_policy": "none",
			"mem_storage": true, "num_replicas": 1, "inactive_threshold": idleList,
		},
	})
	if err != nil {
		return err
	}
	if err := l.ask(ctx, "CONSUMER.CREATE."+l.values+"."+name+"."+filter, config, new(failure)); err != nil {
		return err
	}
	defer func() {
		_ = l.nc.Publish("$JS.API.CONSUMER.DELETE."+l.values+"."+name, nil) // else it ends by itself
	}()
	p := puller{Log: l, consumer: name, inbox: l.nc.NewInbox(), came: make(chan *nats.Msg, listMessages+1)}
	sub, err := l.nc.ChanSubscribe(p.inbox, p.came)
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	for at := uint64(0); at < end; {
		got, err := p.next(ctx)
		if err != nil || len(got) == 0 {
			return err
		}
		for _, m := range got {
			if at = m.at; !yield(m) {
				return nil
			}
		}
	}
	return nil
}

// A puller reads the messages of a consumer. It has a subscription of its own: the
// messages come under the subjects of their values.
type puller struct {
	*Log
	consumer, inbox string
	came            chan *nats.Msg // with room for all that is asked for at a time
}

// next returns the next messages; none: there are no more.
func (p *puller) next(ctx context.Context) (got []stored, err error) {
	request := fmt.Appendf(nil, `{"batch":%d,"no_wait":true}`, listMessages)
	if err := p.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+p.values+"."+p.consumer, p.inbox, request); err != nil {
		return nil, unavailable(err)
	}
	silence := time.NewTimer(p.reading)
	defer silence.Stop()
	for len(got) < listMessages {
		select {
		case m := <-p.came:
			silence.Reset(p.reading)
			switch status := m.Header.Get("Status"); status {
			case "":
			case "404", "408": // there are no more messages
				return got, nil
			default:
				return nil, unavailable(fmt.Errorf("listing: status %s %s", status, m.Header.Get("Description")))
			}
			about, err := m.Metadata()
			if err != nil {
				return nil, unavailable(fmt.Errorf("listing: %w", err))
			}
			is := stored{at: about.Sequence.Stream, subject: m.Subject, time: about.Timestamp, data: m.Data}
			if err := is.header(m.Header); err != nil {
				return nil, unavailable(fmt.Errorf("listing: reading headers: %w", err))
			}
			got = append(got, is)
		case <-silence.C:
			return nil, unavailable(nats.ErrTimeout)
		case <-ctx.Done():
			return nil, unavailable(ctx.Err())
		}
	}
	return got, nil
}
