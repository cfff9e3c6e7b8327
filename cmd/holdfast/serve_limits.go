package main

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"holdfast"
	"holdfast/internal/limit"
)

// limitFlags are the flags of holdfast serve for what clients may begin.
type limitFlags struct {
	rate, addressRate   callRate
	burst, addressBurst int
	calls, toolCalls    int
	queue               int
	queueWait           time.Duration
	proxies             []string
}

func (f *limitFlags) add(fs *pflag.FlagSet) {
	fs.Var(&f.rate, "rate", "calls that one client (a principal, or else an IP address) may begin, like 50/s or 600/m; a call beyond it gets status 429 (default any number)")
	fs.IntVar(&f.burst, "rate-burst", 0, "how many calls of --rate may begin at once (default: those of one second, and at least 1)")
	fs.Var(&f.addressRate, "rate-address", "calls and sessions that all clients of one IP address may begin, like 100/s (default any number)")
	fs.IntVar(&f.addressBurst, "rate-address-burst", 0, "how many calls of --rate-address may begin at once (default: those of one second, and at least 1)")
	fs.StringArrayVar(&f.proxies, "trust-proxy", nil, "`address` or CIDR of proxies whose X-Forwarded-For header is trusted (can be repeated)")
	fs.IntVar(&f.calls, "max-calls-principal", 0, "maximum number of calls in flight of one client (a principal, or else an IP address); 0: any")
	fs.IntVar(&f.toolCalls, "max-calls-tool", 0, "maximum number of calls in flight of one tool; 0: any")
	fs.IntVar(&f.queue, "queue", 0, "how many calls beyond --max-calls-principal and --max-calls-tool may wait for others to end; the rest get status 429")
	fs.DurationVar(&f.queueWait, "queue-wait", 10*time.Second, "how long a call may wait in the --queue")
}

// check returns an error for wrong values.
func (f *limitFlags) check() error {
	for _, n := range []struct {
		name  string
		value int
	}{
		{"--rate-burst", f.burst}, {"--rate-address-burst", f.addressBurst}, {"--max-calls-principal", f.calls},
		{"--max-calls-tool", f.toolCalls}, {"--queue", f.queue},
	} {
		if n.value < 0 {
			return usagef("%s %d: want 0 or more", n.name, n.value)
		}
	}
	switch {
	case f.burst > 0 && f.rate == 0:
		return usagef("--rate-burst %d: it needs --rate", f.burst)
	case f.addressBurst > 0 && f.addressRate == 0:
		return usagef("--rate-address-burst %d: it needs --rate-address", f.addressBurst)
	case f.queueWait <= 0:
		return usagef("--queue-wait %v: want more than 0", f.queueWait)
	}
	for _, text := range f.proxies {
		if _, err := parseProxy(text); err != nil {
			return usagef("--trust-proxy %q: want an IP address, or a CIDR like 10.0.0.0/8", text)
		}
	}
	return nil
}

// set sets the options.
func (f *limitFlags) set(opts *holdfast.Options) {
	l := &opts.Limits
	l.Rate, l.Burst = float64(f.rate), f.burst
	l.AddressRate, l.AddressBurst = float64(f.addressRate), f.addressBurst
	l.Calls, l.ToolCalls = f.calls, f.toolCalls
	l.Queue, l.QueueWait = f.queue, f.queueWait
	for _, text := range f.proxies {
		p, _ := parseProxy(text) // which was checked
		opts.TrustedProxies = append(opts.TrustedProxies, p)
	}
}

// parseProxy parses an address, or a CIDR.
func parseProxy(text string) (netip.Prefix, error) {
	if at, err := netip.ParseAddr(text); err == nil {
		return at.Prefix(at.BitLen())
	}
	return netip.ParsePrefix(text)
}

// A callRate is the value of a flag for so many calls a second.
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
