//go:build !linux

package main

// beUnreadable does nothing: there is no /proc/PID/environ.
func beUnreadable() {}
