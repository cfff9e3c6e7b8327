package holdfast_test

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"

	"holdfast"
	"holdfast/backend/process"
	"holdfast/backend/remote"
	"holdfast/client"
	"holdfast/engine"
	"holdfast/metrics"
	"holdfast/traces"
	"holdfast/webhook"
)

// A user can name the type of each option, and write its values as literals: the test is that this file compiles. The options
// without a literal here are functions and interfaces of the standard library.
var literals = holdfast.Options{
	Response:       holdfast.ResponseSSE,
	Role:           holdfast.Role("worker"),
	Eras:           holdfast.Era("modern"),
	Limits:         holdfast.Limits{Rate: 50, Burst: 100, AddressRate: 500, AddressBurst: 1000, Calls: 8, ToolCalls: 2, Queue: 4, QueueWait: time.Second},
	HandoffAfter:   holdfast.Auto,
	SessionKeys:    [][32]byte{{1}},
	TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	Webhooks:       &webhook.Options{Allow: []webhook.Allowed{{Host: "intranet"}}},
}

// Values may come from elsewhere, such as a user's own flags.
var (
	_ []holdfast.Role     = []holdfast.Role{holdfast.RoleBoth, holdfast.RoleDoor, holdfast.RoleWorker}
	_ []holdfast.Era      = []holdfast.Era{holdfast.ErasAuto, holdfast.ErasBoth, holdfast.ErasLegacy, holdfast.ErasModern}
	_ []holdfast.Response = []holdfast.Response{holdfast.ResponseAuto, holdfast.ResponseJSON, holdfast.ResponseSSE}
	_ []holdfast.Observer = []holdfast.Observer{metrics.New(prometheus.NewRegistry()), traces.New(noop.NewTracerProvider(), &traces.Options{UnderHTTP: true})}
	_ engine.Options      = engine.Options{Keep: time.Minute}
)

// Each option has a type with a name, so that a user can write it.
func TestOptionsNameTheirTypes(t *testing.T) {
	t.Parallel()
	for _, o := range []any{literals, holdfast.Limits{}, holdfast.ClientOptions{}, engine.Options{}, webhook.Options{}, traces.Options{}, client.Options{}, process.Options{}, remote.Options{}} {
		of := reflect.TypeOf(o)
		for i := range of.NumField() {
			field := of.Field(i)
			typ := field.Type
			for typ.Name() == "" && (typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice) {
				typ = typ.Elem()
			}
			if typ.Kind() == reflect.Struct && typ.Name() == "" {
				t.Errorf("%v.%s has a type without a name: %v", of, field.Name, typ)
			}
		}
	}
}

// An old program that wrote roles and eras as untyped constants still compiles.
var _ = holdfast.Options{Role: "door", Eras: "both"}

// Without a registry or a provider no calls are counted or traced: a nil option is ignored.
func TestNoObservers(t *testing.T) {
	t.Parallel()
	if m := metrics.New(nil); m != nil {
		t.Errorf("metrics without a registry: %v", m)
	}
	if m := traces.New(nil, nil); m != nil {
		t.Errorf("traces without a provider: %v", m)
	}
}
