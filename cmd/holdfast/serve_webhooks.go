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
	fs.StringVar(&f.secret, "webhook-secret", "", "`secret` (whsec_...) to sign webhooks with; without it there are none. Others can see a command line: better set HOLDFAST_WEBHOOK_SECRET")
	fs.StringArrayVar(&f.allow, "webhook-allow", nil, "`place` that webhooks may go to though it is private, or not https at port 443: a CIDR, IP address or host name (repeat for more)")
}

// options returns nil where there are no webhooks.
func (f *webhookFlags) options(stateless bool) (*webhook.Options, error) {
	switch {
	case f.secret == "" && len(f.allow) > 0:
		return nil, usagef("--webhook-allow %s: there are no webhooks without --webhook-secret", f.allow[0])
	case f.secret == "":
		return nil, nil
	case stateless:
		return nil, usagef("there is both --webhook-secret and --stateless: without sessions there are no webhooks")
	}
	secret, err := webhook.ParseSecret(f.secret)
	if err != nil {
		return nil, usagef("--webhook-secret: %w", err) // and not what it is: it may be nearly right
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
