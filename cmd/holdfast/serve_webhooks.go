package main

import (
	"holdfast/webhook"
)

// webhookFlags are the flags of holdfast serve for webhooks.
type webhookFlags struct {
	secret string
	allow  []string
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
