//go:build !(linux || darwin || freebsd)

package jetstream

// freeDisk does not know here how much disk is free.
func freeDisk(string) (int64, bool) { return 0, false }
