package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/defaults"
	"holdfast/internal/engine/driver"
)

const (
	leastRetention = 15 * time.Minute
	// longest stands for the retention of a stream without a limit of age.
	longest = 100 * 365 * 24 * time.Hour
)

// prepare makes the two streams, or checks the settings of existing ones.
func (l *Log) prepare(ctx context.Context, a address) error {
	js, err := jetstream.New(l.nc)
	if err != nil {
		return err
	}
	keep := l.keep
	if keep <= 0 {
		keep = defaults.Keep
	}
	p := preparer{Log: l, js: js, asked: a, maxAge: max(leastRetention, 2*keep+time.Minute)}
	p.copies = p.asked.replicas
	if p.copies == 0 {
		p.copies = 1
		if l.nc.ConnectedClusterName() != "" {
			p.copies = 3
		}
	}
	if err := p.size(ctx); err != nil {
		return err
	}
	kept, err := p.stream(ctx, p.eventsConfig())
	if err != nil {
		return err
	}
	if kept.MaxAge <= 0 {
		kept.MaxAge = longest
	}
	l.retention.Store(int64(kept.MaxAge))
	if _, err = p.stream(ctx, p.valuesConfig()); err != nil {
		return err
	}
	return p.led(ctx)
}

// led waits until both streams have leaders, which new streams may lack at first, and
// until the servers that we ask know the streams: a server that learns of them late
// may say that they do not exist.
func (l *Log) led(ctx context.Context) error {
	for _, name := range []string{l.events, l.values} {
		for {
			_, _, err := l.last(ctx, name, l.prefix+".none")
			if err != nil && (transient(err) || code(err) == codeNoStream) && pause(ctx, 100*time.Millisecond) {
				continue
			}
			if err != nil {
				return fmt.Errorf("stream %s: %w", name, err)
			}
			break
		}
	}
	for {
		_, err := l.now(ctx)
		if err == nil || !pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// A preparer prepares streams.
type preparer struct {
	*Log
	js     jetstream.JetStream
	asked  address
	copies int
	maxAge time.Duration // of frames
	most   int64         // bytes of both streams
}

// size sets how large the streams may be. In this process, where max= is not given,
// they may take their present size and half of the free disk: if the disk were full,
// the only sign would be that acknowledgements do not come.
func (p *preparer) size(ctx context.Context) error {
	p.most = defaultMax
	if p.asked.max > 0 {
		p.most = p.asked.max
	}
	if p.server == nil {
		return nil
	}
	free, ok := freeDisk(p.server.dir)
	if !ok {
		return nil
	}
	var used int64
	for _, name := range []string{p.events, p.values} {
		s, err := p.js.Stream(ctx, name)
		switch {
		case err == nil:
			used += int64(s.CachedInfo().State.Bytes)
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return fmt.Errorf("stream %s: %w", name, err)
		}
	}
	switch {
	case p.asked.max == 0:
		p.most = min(p.most, used+free/2)
	case p.most > used+free:
		p.log.Warn("the engine may take more disk than there is: when the disk is full nothing will be acknowledged",
			"max", p.most, "used", used, "free", free)
	}
	return nil
}

func (p *preparer) eventsConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: p.events, Subjects: []string{p.prefix + ".ev.>"}, Description: "Holdfast: what was said in each session",
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
		MaxBytes: p.most / 5 * 4, MaxAge: p.maxAge, Replicas: p.copies, AllowDirect: true,
	}
}

func (p *preparer) valuesConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: p.values, Subjects: []string{p.prefix + ".kv.>"}, Description: "Holdfast: who owns which session",
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
		MaxBytes: p.most / 5, MaxMsgsPerSubject: 1, AllowMsgTTL: true, Replicas: p.copies, AllowDirect: true,
	}
}

// stream makes a stream, or checks the settings of an existing one, and returns its
// settings.
func (p *preparer) stream(ctx context.Context, want jetstream.StreamConfig) (jetstream.StreamConfig, error) {
	for asked := false; ; {
		// A request to a stream that has no leader yet is never answered.
		once, cancel := context.WithTimeout(ctx, attempt)
		is, err := p.try(once, want, &asked)
		cancel()
		if err == nil || !transient(err) || !pause(ctx, 100*time.Millisecond) {
			return is, err
		}
	}
}

// try is one attempt of stream. asked says that an earlier attempt has asked to make the stream: on a slow
// disk that may still be under way.
func (p *preparer) try(ctx context.Context, want jetstream.StreamConfig, asked *bool) (jetstream.StreamConfig, error) {
	s, err := p.js.Stream(ctx, want.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && p.server != nil && !*asked && p.server.holds(want.Name):
		return want, driver.Errorf(driver.ErrIncompatible, "what %s holds of stream %s is corrupt; move it away to begin anew", p.server.dir, want.Name)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		*asked = true
		_, err := p.js.CreateStream(ctx, want)
		return want, p.explain(want, err)
	case err != nil:
		return want, fmt.Errorf("stream %s: %w", want.Name, err)
	}
	is := s.CachedInfo().Config
	if p.server != nil {
		return p.adapt(ctx, is, want)
	}
	return is, p.check(is, want)
}

// adapt changes the settings of a stream in this process to those wanted.
func (p *preparer) adapt(ctx context.Context, is, want jetstream.StreamConfig) (jetstream.StreamConfig, error) {
	if err := p.check(is, want); err == nil && is.MaxBytes == want.MaxBytes && is.MaxAge == want.MaxAge {
		return is, nil
	}
	if _, err := p.js.UpdateStream(ctx, want); err != nil {
		return is, fmt.Errorf("stream %s: changing its limits: %w", want.Name, err)
	}
	return want, nil
}

// explain adds a remedy to the error of a stream that could not be made.
func (p *preparer) explain(want jetstream.StreamConfig, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("making stream %s: %w", want.Name, err)
	switch code(err) {
	case codeNoPeers, codeReplicas:
		return driver.Errorf(driver.ErrIncompatible, "%w (it needs %d servers that have room; see replicas= and max=)", err, want.Replicas)
	case codeStorage, codeResources, codeAccount:
		return driver.Errorf(driver.ErrIncompatible, "%w (it asks for %d bytes; see max=)", err, want.MaxBytes)
	}
	return err
}

// check returns an error if the settings of an existing stream do not fit.
func (p *preparer) check(is, want jetstream.StreamConfig) error {
	switch {
	case len(is.Subjects) != 1 || is.Subjects[0] != want.Subjects[0]:
		return differs(is, "subjects", is.Subjects, want.Subjects)
	case is.Storage != want.Storage:
		return differs(is, "storage", is.Storage, want.Storage)
	case is.Retention != want.Retention:
		return differs(is, "retention", is.Retention, want.Retention)
	case is.Discard != want.Discard:
		return differs(is, "discard policy", is.Discard, want.Discard)
	case is.MaxMsgsPerSubject != want.MaxMsgsPerSubject && max(is.MaxMsgsPerSubject, want.MaxMsgsPerSubject) > 0:
		return differs(is, "max-msgs-per-subject", is.MaxMsgsPerSubject, want.MaxMsgsPerSubject)
	case is.MaxAge > 0 && (want.MaxAge == 0 || is.MaxAge < want.MaxAge):
		return differs(is, "max-age", is.MaxAge, want.MaxAge)
	case want.AllowMsgTTL && !is.AllowMsgTTL:
		return differs(is, "allow-msg-ttl", false, true)
	case !is.AllowDirect:
		return differs(is, "allow-direct", false, true)
	case p.asked.replicas > 0 && is.Replicas < p.asked.replicas:
		return differs(is, "replicas", is.Replicas, p.asked.replicas)
	case p.asked.max > 0 && is.MaxBytes != want.MaxBytes:
		return differs(is, "max-bytes", is.MaxBytes, want.MaxBytes)
	case is.Sealed || is.NoAck || is.DenyPurge || is.Mirror != nil || is.SubjectTransform != nil:
		return driver.Errorf(driver.ErrIncompatible, "stream %s is sealed, a mirror, without acknowledgements, without purges, or transforms subjects: choose another prefix=", is.Name)
	}
	return nil
}

func differs(s jetstream.StreamConfig, what string, is, want any) error {
	return driver.Errorf(driver.ErrIncompatible, "stream %s has %s %v, and needs %v: change it (nats stream edit), or choose another prefix=", s.Name, what, is, want)
}

// transient reports whether an error may come of a cluster that is starting, or of
// another node that makes the same stream.
func transient(err error) bool {
	switch code(err) {
	case codeNotReady, codeNoPeers, codeInUse, codeNoLeader:
		return true
	case 0:
		return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrTimeout) ||
			errors.Is(err, context.DeadlineExceeded) || errors.Is(err, jetstream.ErrJetStreamNotEnabled)
	}
	return false
}
