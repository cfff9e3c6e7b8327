package jetstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/engine/driver"
)

// connect connects to the engine. If no server answers it tries again until ctx is
// done, since the servers may be starting too.
func (l *Log) connect(ctx context.Context, a address) (*nats.Conn, error) {
	o, err := l.options(a)
	if err != nil { // about a file that the URL names
		return nil, driver.As(driver.ErrURL, driver.Kind(err))
	}
	for {
		nc, err := o.Connect()
		switch {
		case err == nil && !recent(nc.ConnectedServerVersion()):
			nc.Close()
			return nil, driver.Errorf(driver.ErrIncompatible, "the servers are NATS %s: 2.11 or newer is needed", nc.ConnectedServerVersion())
		case err == nil:
			return nc, nil
		case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
			return nil, driver.Errorf(driver.ErrPermission, "the servers do not take this user and password: %w", err)
		case !errors.Is(err, nats.ErrNoServers) && !late(err) && !cutAfterTLS(err):
			return nil, driver.As(driver.ErrIncompatible, kindOf(fmt.Errorf("connecting: %w", err)))
		}
		if !pause(ctx, 200*time.Millisecond) {
			if cutAfterTLS(err) {
				return nil, driver.Errorf(driver.ErrPermission, "the servers do not talk to this client; they may want a certificate of its own: %w", err)
			}
			return nil, driver.Errorf(driver.ErrUnreachable, "connecting: %w", err)
		}
	}
}

// late reports whether a server was too slow to accept the connection or to send its first line.
func late(err error) bool {
	var timeout net.Error
	return errors.Is(err, nats.ErrTimeout) || errors.As(err, &timeout) && timeout.Timeout()
}

// cutAfterTLS reports whether the server has ended the connection right after the TLS handshake. It does so if it ends, and if it rejects
// the client's certificate: then it says so, but that message can be lost with the connection.
func cutAfterTLS(err error) bool {
	return errors.Is(err, nats.ErrTLS) && (errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET))
}

// options returns the settings of the connection. A message that cannot be sent
// fails at once: callers repeat it if they know that they may.
func (l *Log) options(a address) (nats.Options, error) {
	o := nats.GetDefaultOptions()
	o.Name = "holdfast " + l.node
	o.MaxReconnect = -1
	o.ReconnectWait = 100 * time.Millisecond
	o.ReconnectJitter, o.ReconnectJitterTLS = 200*time.Millisecond, 200*time.Millisecond
	o.ReconnectBufSize = -1
	o.PingInterval, o.MaxPingsOut = 2*time.Second, 2
	o.Timeout, o.FlusherTimeout = attempt, attempt
	o.IgnoreAuthErrorAbort = true // a server that starts may not know us yet
	var last string               // address of the last server; callbacks come one at a time
	o.ConnectedCB = func(nc *nats.Conn) { last = nc.ConnectedAddr() }
	o.DisconnectedErrCB = func(_ *nats.Conn, err error) {
		if err != nil {
			l.log.Debug("the connection to the engine is lost", "error", err) // the user of the store pings it, and logs that
		}
	}
	o.ReconnectedCB = func(nc *nats.Conn) {
		if now := nc.ConnectedAddr(); now != "" && now != last {
			l.log.Info("the store is reached over another of its servers", "server", now)
			last = now
		}
		l.again(a)
	}
	o.AsyncErrorCB = func(_ *nats.Conn, _ *nats.Subscription, err error) {
		l.log.Warn("the engine reports an error", "error", err)
	}
	o.ClosedCB = func(*nats.Conn) { close(l.closed) }
	if l.server != nil {
		o.InProcessServer = l.server
		// Nothing gets lost between this process and its own server. If the server is
		// silent, this process is overloaded or was stopped, and a new connection would
		// only lose the messages under way.
		o.PingInterval = nats.DefaultPingInterval
		return o, nil
	}
	o.Servers = a.servers
	if a.user != nil {
		if password, ok := a.user.Password(); ok {
			o.User, o.Password = a.user.Username(), password
		} else {
			o.Token = a.user.Username()
		}
	}
	var files []nats.Option
	if a.creds != "" {
		files = append(files, nats.UserCredentials(a.creds))
	}
	if a.ca != "" {
		files = append(files, nats.RootCAs(a.ca))
	}
	if a.cert != "" {
		files = append(files, nats.ClientCert(a.cert, a.key))
	}
	for _, f := range files {
		if err := f(&o); err != nil {
			return o, err
		}
	}
	return o, nil
}

// recent reports whether a server has the features that we need: since 2.11 each
// message can have its own time to live, and an answer many messages.
func recent(version string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return true // a version that cannot be read
	}
	return major > 2 || major == 2 && minor >= 11
}

// again checks the streams, and makes them anew if the engine has lost them.
func (l *Log) again(a address) {
	select {
	case <-l.opened:
	default:
		return // Open makes them
	}
	ctx, cancel := context.WithTimeout(context.Background(), opening)
	defer cancel()
	if err := l.prepare(ctx, a); err != nil && !l.nc.IsClosed() {
		l.log.Error("the engine is not as it was", "error", err)
	}
}

// pause waits, and returns false when ctx is done.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
