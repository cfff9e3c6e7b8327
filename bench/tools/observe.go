package tools

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/metrics"
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

// WriteLines writes them.
func (a *auditHandler) WriteLines(lines []byte) error {
	_, err := a.file.Write(lines)
	return err
}
