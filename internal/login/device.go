package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// device logs in with a code that the user enters on any device (RFC 8628).
func (l *attempt) device(ctx context.Context) (record, error) {
	s := l.s
	if l.r.Client.ID == "" {
		var err error
		if l.r.Client, err = s.client(ctx, l.at, "http://127.0.0.1/callback"); err != nil {
			return record{}, err
		}
	}
	form := url.Values{"resource": {l.r.Resource}}
	if len(l.scopes) > 0 {
		form.Set("scope", strings.Join(l.scopes, " "))
	}
	var got struct {
		Code     string          `json:"device_code"`
		User     string          `json:"user_code"`
		URI      string          `json:"verification_uri"`
		Complete string          `json:"verification_uri_complete"`
		Expires  json.RawMessage `json:"expires_in"`
		Interval json.RawMessage `json:"interval"`
	}
	if err := s.post(ctx, l.at.device, l.r.Client, l.r.Places, l.r.Issuer, form, nil, &got); err != nil {
		return record{}, l.failed(err)
	}
	if got.Code == "" || got.User == "" || !safe(got.URI) {
		return record{}, fmt.Errorf("no login at %s: the authorization server gives no code for a device", s.server.Host)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, seconds(got.Expires, loginWithin), errors.New("nobody has entered the code"))
	defer cancel()
	text := fmt.Sprintf("%s needs a login: open %s on any device and enter the code %s", s.server.Host, oneLine(got.URI), oneLine(got.User))
	if safe(got.Complete) {
		text += ", or open " + oneLine(got.Complete)
	}
	s.tell(l.f, text)
	for every := seconds(got.Interval, 5*time.Second); ; {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return record{}, fmt.Errorf("no login at %s: %w", s.server.Host, context.Cause(ctx))
		}
		if !l.f.need.anew && s.has(l.f.need) {
			return record{}, errElsewhere
		}
		lasting, end := finishing(ctx)
		t, granted, err := s.ask(lasting, l.r.Client, l.r.Places, l.r.Issuer, l.r.Resource, url.Values{"grant_type": {deviceGrant}, "device_code": {got.Code}}, l.bound)
		end()
		switch {
		case err == nil:
			return l.done(l.r, t, granted), nil
		case says(err, "authorization_pending"):
		case says(err, "slow_down"):
			every += 5 * time.Second
		case passes(err):
			every = min(2*every, time.Minute)
		default:
			return record{}, l.failed(err)
		}
	}
}

// failed returns the error of a login that the authorization server has refused. It forgets a client that the authorization server does not know.
func (l *attempt) failed(err error) error {
	if isOfClient(err) {
		l.forget(true)
	}
	return fmt.Errorf("no login at %s: %w", l.s.server.Host, err)
}

// seconds returns a number of seconds in JSON, which some servers write as a text.
func seconds(raw json.RawMessage, otherwise time.Duration) time.Duration {
	n, err := strconv.ParseFloat(strings.Trim(string(raw), `"`), 64)
	if err != nil || n <= 0 || n > 1e6 {
		return otherwise
	}
	return time.Duration(n * float64(time.Second))
}
