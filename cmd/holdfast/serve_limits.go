package main

import (
	"net/netip"
	"strconv"

	"holdfast/internal/limit"
)

// checkLimits returns an error for limits that do not go together, and for proxies that have no address.
func (f *serveFlags) checkLimits() error {
	switch l := &f.opts.Limits; {
	case l.Burst > 0 && l.Rate == 0:
		return usagef("--rate-burst %d: it needs --rate", l.Burst)
	case l.AddressBurst > 0 && l.AddressRate == 0:
		return usagef("--rate-address-burst %d: it needs --rate-address", l.AddressBurst)
	}
	for _, text := range f.proxies {
		p, err := parseProxy(text)
		if err != nil {
			return usagef("--trust-proxy %q: want an IP address, or a CIDR like 10.0.0.0/8", text)
		}
		f.opts.TrustedProxies = append(f.opts.TrustedProxies, p)
	}
	return nil
}

// parseProxy parses an address, or a CIDR.
func parseProxy(text string) (netip.Prefix, error) {
	if at, err := netip.ParseAddr(text); err == nil {
		return at.Prefix(at.BitLen())
	}
	return netip.ParsePrefix(text)
}

// A callRate is the value of a flag for a number of calls a second.
type callRate float64

// String implements [pflag.Value].
func (r *callRate) String() string {
	if *r == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*r), 'g', -1, 64) + "/s"
}

// Set implements [pflag.Value].
func (r *callRate) Set(s string) error {
	perSecond, err := limit.ParseRate(s)
	*r = callRate(perSecond)
	return err
}

// Type implements [pflag.Value].
func (r *callRate) Type() string { return "rate" }
