package main

import (
	"github.com/spf13/pflag"

	"holdfast/webhook"
)

// webhookFlags are the flags of holdfast serve for webhooks.
type webhookFlags struct {
	secret string
	allow  []string
}

func (f *webhookFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.secret, "webhook-secret", "", "`secret` (whsec_...) that signs webhooks; without it there are none. Other users can see a command line: better set HOLDFAST_WEBHOOK_SECRET")
	fs.StringArrayVar(&f.allow, "webhook-allow", nil, "`destination` that webhooks may go to although it is private, or not https on port 443: a CIDR, IP address or host name (can be repeated)")
}

// options returns the options of webhooks; nil: there are none.
func (f *webhookFlags) options(stateless bool) (*webhook.Options, error) {
	switch {
	case f.secret == "" && len(f.allow) > 0:
		return nil, usagef("--webhook-allow %s: webhooks need --webhook-secret", f.allow[0])
	case f.secret == "":
		return nil, nil
	case stateless:
		return nil, usagef("both --webhook-secret and --stateless are given: webhooks need sessions")
	}
	secret, err := webhook.ParseSecret(f.secret)
	if err != nil {
		return nil, usagef("--webhook-secret: %w", err) // its value is not shown: it may be nearly right
	}
	opts := &webhook.Options{Secret: secret}
	for _, text := range f.allow {
		allowed, err := webhook.ParseAllowed(text)
		if err != nil {
			return nil, usagef("--webhook-allow %w", err)
		}
		opts.Allow = append(opts.Allow, allowed)
	}
	return opts, nil
}
