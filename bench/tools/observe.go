package tools

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
)

// Observe returns what has handlers counted and their calls written to an audit, as
// "holdfast serve --admin ADDR --audit FILE" has them, and what ends that after them. Each handler has a
// name.
func Observe() (observe func(o *holdfast.Options, name string), end func(), err error) {
	file, err := os.CreateTemp("", "holdfast-audit-")
	if err != nil {
		return nil, nil, fmt.Errorf("audit: %w", err)
	}
	_ = os.Remove(file.Name()) // it is gone with the process
	registry := prometheus.NewRegistry()
	return func(o *holdfast.Options, name string) {
		o.Metrics = prometheus.WrapRegistererWith(prometheus.Labels{"handler": name}, registry)
		a := &auditHandler{file: file}
		a.Handler = slog.NewJSONHandler(&a.page, nil)
		o.Audit = a
	}, func() { _ = file.Close() }, nil
}

// An auditHandler writes several lines at a time.
type auditHandler struct {
	slog.Handler
	page bytes.Buffer
	file *os.File
}

// WriteLine takes a line.
func (a *auditHandler) WriteLine(line []byte) error {
	a.page.Write(line)
	return nil
}

// Flush writes what was handled.
func (a *auditHandler) Flush() error {
	_, err := a.page.WriteTo(a.file)
	return err
}
