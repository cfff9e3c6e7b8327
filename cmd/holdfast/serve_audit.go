package main

import (
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// auditFlags are the flags of the audit.
type auditFlags struct {
	file   string
	stdout io.Writer // for "-"
}

// check returns an error if arguments are asked for without an audit.
func (f *auditFlags) check(arguments bool) error {
	if arguments && f.file == "" {
		return usagef("--audit-arguments is given without --audit FILE")
	}
	return nil
}

// open opens the audit; nil if there is none. The caller must close it.
func (f *auditFlags) open() (*auditLog, error) {
	switch f.file {
	case "":
		return nil, nil
	case "-":
		return newAuditLog(&auditFile{to: f.stdout}), nil
	}
	file := &auditFile{name: f.file}
	if err := file.reopen(); err != nil {
		return nil, wrongFile("--audit", err)
	}
	l := newAuditLog(file)
	l.hangups = make(chan os.Signal, 1)
	signal.Notify(l.hangups, syscall.SIGHUP)
	l.work.Go(func() {
		for range l.hangups {
			if err := file.reopen(); err != nil { // the audit goes on in the file that is open
				slog.Error("the audit's file was not opened again", "error", err)
			} else {
				slog.Info("the audit's file was opened again", "file", f.file)
			}
		}
	})
	return l, nil
}

// An auditLog writes lines of JSON, several at a time. It has one caller.
type auditLog struct {
	slog.Handler
	file    *auditFile
	hangups chan os.Signal // nil where there is nothing to open again
	work    sync.WaitGroup
}

func newAuditLog(file *auditFile) *auditLog {
	return &auditLog{Handler: slog.NewJSONHandler(file, nil), file: file}
}

// WriteLines writes whole lines, as the handler would.
func (l *auditLog) WriteLines(lines []byte) error {
	_, err := l.file.Write(lines)
	return err
}

// close closes the file. It may be called for a nil auditLog.
func (l *auditLog) close() error {
	if l == nil {
		return nil
	}
	if l.hangups != nil {
		signal.Stop(l.hangups)
		close(l.hangups)
	}
	l.work.Wait()
	return l.file.close()
}

// An auditFile is a file that can be opened again, when another program has renamed it.
type auditFile struct {
	name string // "": to is stdout, which stays open

	mu sync.Mutex
	to io.Writer
}

// reopen opens the file anew.
func (f *auditFile) reopen() error {
	to, err := os.OpenFile(f.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	f.mu.Lock()
	was := f.to
	f.to = to
	f.mu.Unlock()
	if was, ok := was.(*os.File); ok {
		return was.Close()
	}
	return nil
}

// Write implements [io.Writer].
func (f *auditFile) Write(lines []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.to.Write(lines)
}

func (f *auditFile) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if file, ok := f.to.(*os.File); ok && f.name != "" {
		return file.Close()
	}
	return nil
}
