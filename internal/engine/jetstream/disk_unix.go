//go:build linux || darwin || freebsd

package jetstream

import "syscall"

// freeDisk returns how many bytes are free where a directory is.
func freeDisk(dir string) (int64, bool) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true //nolint:unconvert // their types differ between systems
}
