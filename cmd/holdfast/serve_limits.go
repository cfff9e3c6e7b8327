package main

import (
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
}

func (f *limitFlags) add(fs *pflag.FlagSet) {
	fs.Var(&f.rate, "rate", "calls that one client (one principal, or else one address) may begin, like 50/s or 600/m; others get status 429 (default any number)")
	fs.IntVar(&f.burst, "rate-burst", 0, "how many of them at once (default those of a second, and 1 at the least)")
	fs.Var(&f.addressRate, "rate-address", "calls and sessions that clients of one address may begin, like 100/s (default any number)")
	fs.IntVar(&f.addressBurst, "rate-address-burst", 0, "how many of them at once (default those of a second, and 1 at the least)")
	fs.IntVar(&f.calls, "max-calls-principal", 0, "maximum number of calls in flight of one client (one principal, or else one address); 0: any")
	fs.IntVar(&f.toolCalls, "max-calls-tool", 0, "maximum number of calls in flight of one tool; 0: any")
	fs.IntVar(&f.queue, "queue", 0, "how many calls over these maximum numbers may wait for others to end, in place of status 429")
	fs.DurationVar(&f.queueWait, "queue-wait", 10*time.Second, "for how long")
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
	return nil
}

// set sets the options.
func (f *limitFlags) set(opts *holdfast.Options) {
	l := &opts.Limits
	l.Rate, l.Burst = float64(f.rate), f.burst
	l.AddressRate, l.AddressBurst = float64(f.addressRate), f.addressBurst
	l.Calls, l.ToolCalls = f.calls, f.toolCalls
	l.Queue, l.QueueWait = f.queue, f.queueWait
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
