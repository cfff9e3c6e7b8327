package process

import (
	"syscall"
	"unsafe"
)

// awaitExit waits until a child has exited, and leaves it a zombie: its id stays taken, and so does the name
// of its group. It returns false if it cannot wait. Meanwhile it holds a thread, as os.Process.Wait does too.
func awaitExit(pid int) bool {
	const byPID = 1        // P_PID, see waitid(2)
	var siginfo [16]uint64 // 128 bytes, which are not looked at
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(pid),
			uintptr(unsafe.Pointer(&siginfo)), syscall.WEXITED|syscall.WNOWAIT, 0, 0)
		if errno != syscall.EINTR {
			return errno == 0
		}
	}
}
