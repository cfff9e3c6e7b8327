package session

// A record is what is known of a call beside its stream.
type record struct {
	key   *keyID // that it was begun under; nil if under none
	sum   keySum // of what it was begun with, if so
	once  bool   // the key is a node's name for a POST
	hooks *hooks // nil if its requests name no webhook

	// What was said before the session was taken over, if the call was made again then;
	// guarded by Session.mu.
	progress progress

	// How it is resumed; nil if its client can't. It does not change after Begin.
	resume *resume
}
