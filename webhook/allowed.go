package webhook

import (
	"fmt"
	"net/netip"
	"strings"
)

// An Allowed is a destination that the operator allows: a host name, or a range of
// addresses. [ParseAllowed] makes one.
type Allowed struct {
	// Host is a host name in lower case, without a dot at its end; "" for a range.
	Host string
	// Network is a range of addresses, where Host is "".
	Network netip.Prefix
}

// ParseAllowed parses a range in CIDR notation, an IP address or a host name. A host
// name stands for all addresses that it has, but not for its subdomains.
func ParseAllowed(text string) (Allowed, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		if p.Addr().Is4In6() {
			return Allowed{}, fmt.Errorf("%q: want it in IPv4's own notation", text)
		}
		return Allowed{Network: p.Masked()}, nil
	}
	if a, err := netip.ParseAddr(text); err == nil {
		a = a.Unmap().WithZone("")
		return Allowed{Network: netip.PrefixFrom(a, a.BitLen())}, nil
	}
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if label == "" || strings.ContainsFunc(label, notInName) {
			return Allowed{}, fmt.Errorf("%q: want a CIDR like 10.0.0.0/8, an IP address or a host name", text)
		}
	}
	if last := labels[len(labels)-1]; last[0] >= '0' && last[0] <= '9' {
		return Allowed{}, fmt.Errorf("%q: want a whole IP address, or a CIDR like 10.0.0.0/8", text)
	}
	return Allowed{Host: name}, nil
}

// notInName reports whether a host name cannot contain a character. Names beyond ASCII
// are allowed in the form that they have in a URL or in DNS.
func notInName(r rune) bool {
	return r < 0x80 && r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
}
