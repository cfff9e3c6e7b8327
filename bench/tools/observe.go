package tools

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/metrics"
)

// Observe returns a function that adds metrics and an audit to a handler's options, as "holdfast serve
// --admin ADDR --audit FILE" does, with a name for each handler. end is called after the handlers have
// ended.
func Observe() (observe func(o *holdfast.Options, name string), end func(), err error) {
	file, err := os.CreateTemp("", "holdfast-audit-")
	if err != nil {
		return nil, nil, fmt.Errorf("audit: %w", err)
	}
	_ = os.Remove(file.Name()) // the file ends with the process
	registry := prometheus.NewRegistry()
	return func(o *holdfast.Options, name string) {
		o.Metrics = metrics.New(prometheus.WrapRegistererWith(prometheus.Labels{"handler": name}, registry))
		a := &auditHandler{Handler: slog.NewJSONHandler(file, nil), file: file}
		o.Audit = a
	}, func() { _ = file.Close() }, nil
}

// An auditHandler writes several lines at a time.
type auditHandler struct {
	slog.Handler
	file *os.File
}

// WriteLines writes lines to the file.
func (a *auditHandler) WriteLines(lines []byte) error {
	_, err := a.file.Write(lines)
	return err
}
