package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"syscall"
	"time"

	"holdfast/internal/auth"
)

// tlsFlags are the flags of holdfast serve for TLS.
type tlsFlags struct {
	cert, key, clientCA string

	files *auth.Certificates // made of them; nil: there is no TLS
}

// check returns an error for wrong values of flags, and reads the files.
func (f *tlsFlags) check() (err error) {
	switch {
	case f.cert == "" && f.key == "" && f.clientCA == "":
		return nil
	case f.cert == "" || f.key == "":
		return usagef("TLS needs a certificate and its key: give both --tls-cert and --tls-key")
	}
	if f.files, err = auth.OpenCertificates(f.cert, f.key, f.clientCA); err != nil {
		return f.wrong(err)
	}
	return nil
}

// wrong returns the error for files that cannot be used, with the flag that names the wrong one.
func (f *tlsFlags) wrong(err error) error {
	var file *fs.PathError
	if !errors.As(err, &file) {
		if _, only := auth.OpenCertificates(f.cert, f.key, ""); f.clientCA != "" && only == nil {
			return fmt.Errorf("--tls-client-ca %w: give a PEM file with the certificates of authorities", err)
		}
		return fmt.Errorf("--tls-cert and --tls-key: %w: give PEM files of a certificate and of the key that it was made with", err)
	}
	for _, one := range []struct{ flag, name string }{{"--tls-cert", f.cert}, {"--tls-key", f.key}, {"--tls-client-ca", f.clientCA}} {
		if one.name == file.Path {
			return wrongFile(one.flag, err)
		}
	}
	return err
}

// scheme returns the scheme of the server's URLs.
func (f *tlsFlags) scheme() string {
	if f.files == nil {
		return "http"
	}
	return "https"
}

// watchFiles calls reload, with true at SIGHUP, and with false each second: files that are in use may have
// changed. It returns at once, and ends with ctx.
func watchFiles(ctx context.Context, reload func(asked bool)) {
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	go func() {
		defer signal.Stop(again)
		t := time.NewTicker(lookEvery)
		defer t.Stop()
		for {
			select {
			case <-again:
				reload(true)
			case <-t.C:
				reload(false)
			case <-ctx.Done():
				return
			}
		}
	}()
}
