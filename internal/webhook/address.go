package webhook

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	options "holdfast/webhook"
)

// hostOf returns a host name in the form of [options.Allowed].Host, for comparisons.
func hostOf(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// target is the receiver of a webhook.
type target struct {
	url   *url.URL
	host  string // in the form of hostOf
	place string // host and port: the key of Sender.hosts
}

// String returns the target for the log, without path, query and userinfo, which may be secret.
func (t target) String() string {
	if t.url == nil {
		return "(unreadable)"
	}
	return t.url.Scheme + "://" + t.url.Host
}

// LogValue implements [slog.LogValuer].
func (t target) LogValue() slog.Value { return slog.StringValue(t.String()) }

// policy decides to which targets and addresses webhooks may go.
type policy struct {
	networks []netip.Prefix
	hosts    map[string]bool
}

func newPolicy(allow []options.Allowed) policy {
	p := policy{hosts: make(map[string]bool)}
	for _, a := range allow {
		if a.Host != "" {
			p.hosts[a.Host] = true
		} else {
			p.networks = append(p.networks, a.Network)
		}
	}
	return p
}

// longestURL bounds a webhook's URL, in bytes.
const longestURL = 2048

// parse reads a URL, and refuses those that are wrong whatever address the host has. Its errors
// have nothing of the URL's text.
func (p *policy) parse(text string) (target, error) {
	u, err := url.Parse(text)
	switch {
	case len(text) > longestURL:
		return target{}, fmt.Errorf("it is longer than %d bytes", longestURL)
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return target{}, errors.New("want an absolute https URL")
	}
	t := target{url: u, host: hostOf(u.Hostname()), place: strings.ToLower(u.Host)}
	switch known := p.hosts[t.host] || len(p.networks) > 0; {
	case u.User != nil:
		return t, errors.New("it holds a user name or password")
	case u.Scheme == "http" && !known:
		return t, errPlain
	case u.Port() != "" && u.Port() != "443" && !known:
		return t, errPort
	}
	return t, nil
}

// errRefused is wrapped by the errors of [policy.check].
var errRefused = errors.New("refused")

// The errors of URLs that are refused unless the operator has allowed their host or address.
var (
	errPlain = fmt.Errorf("%w: http, and not where the operator allowed it", errRefused)
	errPort  = fmt.Errorf("%w: not port 443, and not where the operator allowed it", errRefused)
)

// check returns an error if webhooks to a target may not go to an address, to which a connection is
// about to be made.
func (p *policy) check(t target, at netip.AddrPort) error {
	addr := at.Addr().Unmap().WithZone("")
	if p.hosts[t.host] || slices.ContainsFunc(p.networks, func(n netip.Prefix) bool { return n.Contains(addr) }) {
		return nil
	}
	switch kind := special(addr); {
	case kind != "":
		return fmt.Errorf("%w: %s is %s", errRefused, addr, kind)
	case t.url.Scheme != "https":
		return errPlain
	case at.Port() != 443:
		return errPort
	}
	return nil
}

// specials are the networks without public hosts: those of IPv4, and those of IPv6 in 2000::/3
// (IANA special-purpose address registries).
var specials = []struct {
	network netip.Prefix
	kind    string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "a carrier's own"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("168.63.129.16/32"), "Azure's metadata service"}, // public in form only
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},
	{netip.MustParsePrefix("192.0.2.0/24"), "for documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "a 6to4 relay's"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("198.18.0.0/15"), "for benchmarks"},
	{netip.MustParsePrefix("198.51.100.0/24"), "for documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "for documentation"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},

	{netip.MustParsePrefix("2001::/23"), "reserved"}, // Teredo among them
	{netip.MustParsePrefix("2001:db8::/32"), "for documentation"},
	{netip.MustParsePrefix("3fff::/20"), "for documentation"},
}

// The IPv6 network in which hosts may be public, and the prefixes of IPv6 addresses that stand for
// IPv4 addresses (RFC 6052, RFC 3056).
var (
	publicIPv6 = netip.MustParsePrefix("2000::/3")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour  = netip.MustParsePrefix("2002::/16")
)

// special returns the kind of an address that is not a public host's, or "".
func special(addr netip.Addr) string {
	if addr.Is6() {
		b := addr.As16()
		switch {
		case nat64.Contains(addr):
			return special(netip.AddrFrom4([4]byte(b[12:])))
		case sixToFour.Contains(addr):
			return special(netip.AddrFrom4([4]byte(b[2:])))
		case addr.IsLoopback():
			return "loopback"
		case addr.IsUnspecified():
			return "unspecified"
		case addr.IsPrivate():
			return "private"
		case addr.IsMulticast():
			return "multicast"
		case addr.IsLinkLocalUnicast():
			return "link-local"
		case !publicIPv6.Contains(addr):
			return "reserved"
		}
	}
	for _, s := range specials {
		if s.network.Contains(addr) {
			return s.kind
		}
	}
	return ""
}
