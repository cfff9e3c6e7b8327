package traces

import (
	"strings"
	"testing"

	"go.opentelemetry.io/otel"

	_ "holdfast/internal/testlong" // the flag -long
)

// The environment selects the samplers as in the SDK, and a wrong value is reported.
func TestSamplerOfEnvironment(t *testing.T) {
	told := 0
	before := otel.GetErrorHandler()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) { told++ }))
	defer otel.SetErrorHandler(before)
	for _, x := range []struct {
		name, arg, is string
		wrong         int
	}{
		{is: "ParentBased{root:AlwaysOnSampler"},
		{name: "parentbased_always_off", is: "ParentBased{root:AlwaysOffSampler"},
		{name: "always_on", is: "AlwaysOnSampler"},
		{name: " ALWAYS_OFF ", is: "AlwaysOffSampler"},
		{name: "traceidratio", arg: "0.25", is: "TraceIDRatioBased{0.25}"},
		{name: "parentbased_traceidratio", arg: "0.01", is: "ParentBased{root:TraceIDRatioBased{0.01}"},
		{name: "traceidratio", is: "TraceIDRatioBased{1}"},
		{name: "traceidratio", arg: "2", is: "TraceIDRatioBased{1}", wrong: 1},
		{name: "parentbased_traceidratio", arg: "-1", is: "ParentBased{root:TraceIDRatioBased{1}", wrong: 1},
		{name: "no_such", is: "ParentBased{root:AlwaysOnSampler", wrong: 1},
	} {
		t.Setenv("OTEL_TRACES_SAMPLER", x.name)
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", x.arg)
		told = 0
		if got := NewProvider(nil).sampler.Description(); !strings.HasPrefix(got, x.is) || told != x.wrong {
			t.Errorf("%q %q: %s, and %d errors; want %s, and %d", x.name, x.arg, got, told, x.is, x.wrong)
		}
	}
}
