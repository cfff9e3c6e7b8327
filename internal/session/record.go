package session

// A record is what is known of a call beside its stream.
type record struct {
	key      *keyRecord // nil if it was begun under no idempotency key
	webhooks *webhooks  // nil if its requests name no webhook

	// What was said before the session was taken over, if the call was made again then;
	// guarded by Session.mu.
	progress progress

	// How it is resumed; nil if its client can't. It does not change after Begin.
	resume *resume
}
