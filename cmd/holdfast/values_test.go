package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/internal/mcptest"
)

// A 0 on the command line has one of these meanings.
const (
	isOff     = "off"     // as a negative value
	isDefault = "default" // the default is 0
	isRefused = "refused"
)

// A setting is an option of the library that is a number or a time, and the flag of holdfast serve for it.
type setting struct {
	option, flag string
	byDefault    string // the flag's default
	documented   string // the same in the option's documentation
	off          bool   // a negative value switches it off, in both; otherwise the flag refuses the value, and the option has its default
	zero         string // the meaning of the flag's 0; an option's 0 is always its default
}

// settings has all settings. docs/running.md has the rule, in "Values of flags and options".
var settings = []setting{
	{"UpgradeAfter", "upgrade-after", "50ms", "50 ms", false, isRefused},
	{"DisconnectAfter", "disconnect-after", "never", "By default, and if DisconnectAfter is negative, the connection is\nnot closed", true, isOff},
	{"Retry", "retry", "1s", "1 s", false, isRefused},
	{"KeepAlive", "keepalive", "15s", "15 s. Negative", true, isOff},
	{"PingAfter", "ping-after", "1s", "1 s; negative", true, isOff},
	{"TaskAfter", "task-after", "2s", "2 s.\nNegative", true, isOff},
	{"HandoffAfter", "handoff-after", "auto", "By default, and if it is negative otherwise", true, isOff}, // as the go-sdk's handler does
	{"ProgressEvery", "progress-every", "auto", "By default, and if it is negative otherwise", true, isOff},
	{"AttachWithin", "attach-within", "2m0s", "2 minutes; negative", true, isOff},
	{"CutGrace", "cut-grace", "30s", "30 s; negative", true, isOff},
	{"SessionTTL", "session-ttl", "30m0s", "30 minutes", false, isRefused},
	{"SleepAfter", "sleep-after", "5m0s", "5 minutes; negative", true, isOff},
	{"SessionLife", "session-life", "720h0m0s", "30 days; negative", true, isOff},
	{"Keep", "keep", "10m0s", "10 minutes", false, isRefused},
	{"MaxWait", "max-wait", "1h0m0s", "1 h. Negative", true, isOff},
	{"MaxBody", "max-body", "4MiB", "4 MiB", false, isRefused},
	{"MaxSessions", "max-sessions", "250000", "250,000", false, isRefused},
	{"MaxCalls", "max-calls", "1000000", "1,000,000", false, isRefused},
	{"Limits.Rate", "rate", "", "field\nthat is zero sets no bound", false, isRefused},
	{"Limits.Burst", "rate-burst", "0", "field\nthat is zero sets no bound", false, isDefault},
	{"Limits.AddressRate", "rate-address", "", "field\nthat is zero sets no bound", false, isRefused},
	{"Limits.AddressBurst", "rate-address-burst", "0", "field\nthat is zero sets no bound", false, isDefault},
	{"Limits.Calls", "max-calls-principal", "0", "field\nthat is zero sets no bound", false, isDefault},
	{"Limits.ToolCalls", "max-calls-tool", "0", "field\nthat is zero sets no bound", false, isDefault},
	{"Limits.Queue", "queue", "0", "field\nthat is zero sets no bound", false, isDefault},
	{"Limits.QueueWait", "queue-wait", "10s", "field\nthat is zero sets no bound", false, isRefused},
	{"MaxProcesses", "max-processes", "256", "256. Negative", true, isRefused},
	{"MaxShare", "max-share", "0.75", "0.75", false, isRefused},
	{"UnusedProcess", "unused-process", "1m0s", "1 minute", true, isOff},
	{"Memory", "memory", "0", "a quarter of", false, isRefused},
}

// programs are flags of the program itself, without an option of the library.
var programs = []string{"drain", "auth-grace", "upstream-wait"}

// of returns the option's field.
func (s *setting) of(o *holdfast.Options) reflect.Value {
	v := reflect.ValueOf(o).Elem()
	for name := range strings.SplitSeq(s.option, ".") {
		v = v.FieldByName(name)
	}
	return v
}

// optionsOf returns the options of a command line, or the error that refuses it.
func optionsOf(args ...string) (*holdfast.Options, error) {
	cmd, f := newServeFlags()
	if err := cmd.ParseFlags(args); err != nil {
		return nil, err
	}
	if err := f.check([]string{"true"}); err != nil {
		return nil, err
	}
	return f.options(), nil
}

// Zero and negative values have the same meaning in an option and in its flag.
func TestZeroAndNegative(t *testing.T) {
	t.Parallel()
	documents := documentsOf(t, "../../options.go")
	flags := newServe().Flags()
	for _, s := range settings {
		t.Run(s.flag, func(t *testing.T) {
			t.Parallel()
			if is := flags.Lookup(s.flag).DefValue; is != s.byDefault {
				t.Errorf("the flag's default is %s, want %s", is, s.byDefault)
			}
			owner, _, _ := strings.Cut(s.option, ".")
			if !strings.Contains(documents[owner], s.documented) {
				t.Errorf("the documentation of Options.%s has no %q: %s", owner, s.documented, documents[owner])
			}
			negative, zero := "-1", "0"
			if f := flags.Lookup(s.flag); strings.HasSuffix(f.Value.Type(), "duration") {
				negative, zero = "-1s", "0s"
			}
			want := map[string]string{negative: isRefused, zero: s.zero}
			if s.off {
				want[negative] = isOff
				if strings.HasSuffix(flags.Lookup(s.flag).Value.Type(), "duration") {
					want["never"] = isOff
				}
			}
			for value, want := range want {
				o, err := optionsOf("--" + s.flag + "=" + value)
				switch {
				case want == isRefused && err == nil:
					t.Errorf("--%s %s is taken", s.flag, value)
				case want == isRefused:
					if !strings.Contains(err.Error(), s.flag) {
						t.Errorf("--%s %s: the error does not name it: %v", s.flag, value, err)
					}
				case err != nil:
					t.Errorf("--%s %s: %v", s.flag, value, err)
				default:
					is := s.of(o)
					if want == isOff && is.Int() != int64(holdfast.Never) {
						t.Errorf("--%s %s: Options.%s is %v, want it off", s.flag, value, s.option, is)
					}
					if want == isDefault && !is.IsZero() {
						t.Errorf("--%s %s: Options.%s is %v, want 0", s.flag, value, s.option, is)
					}
				}
			}
			for value, wrong := range map[int]bool{0: false, -1: !s.off} {
				if told := optionTold(t, &s, value); told != wrong {
					t.Errorf("Options.%s %d: told that it is wrong: %v", s.option, value, told)
				}
			}
		})
	}
}

// optionTold reports whether a handler logs that a value is wrong.
func optionTold(t *testing.T, s *setting, value int) bool {
	t.Helper()
	var log bytes.Buffer
	o := &holdfast.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))}
	if v := s.of(o); v.CanFloat() {
		v.SetFloat(float64(value))
	} else {
		v.SetInt(int64(value))
	}
	h := holdfast.NewBackendHandler(message.New(message.HandlerFunc(func(*message.Exchange) {})), o)
	if err := h.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	return strings.Contains(log.String(), "option=Options."+s.option+" ")
}

// Each option and each flag with a number or a time is one of the settings.
func TestSettingsAreAll(t *testing.T) {
	t.Parallel()
	has := func(option, flag string) bool {
		return slices.ContainsFunc(settings, func(s setting) bool { return s.option == option || s.flag == flag })
	}
	var look func(of reflect.Type, prefix string)
	look = func(of reflect.Type, prefix string) {
		for i := range of.NumField() {
			f := of.Field(i)
			name := prefix + f.Name
			switch f.Type.Kind() {
			case reflect.Struct:
				look(f.Type, name+".")
			case reflect.Int, reflect.Int64, reflect.Float64:
				if f.Type != reflect.TypeFor[holdfast.Response]() && !has(name, "none") {
					t.Errorf("Options.%s is not one of the settings", name)
				}
			}
		}
	}
	look(reflect.TypeFor[holdfast.Options](), "")
	newServe().Flags().VisitAll(func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "duration", "auto|duration", "int", "int64", "float64", "size", "rate":
			if !slices.Contains(programs, f.Name) && !has("none", f.Name) {
				t.Errorf("--%s is not one of the settings", f.Name)
			}
		}
	})
}

// Values outside of a range are wrong, too.
func TestOptionsOutOfRange(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h := holdfast.NewBackendHandler(message.New(message.HandlerFunc(func(*message.Exchange) {})), &holdfast.Options{
		MaxShare: 1.5, Response: 7, Retry: -time.Second, Role: "boss", Eras: "newest", Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err := h.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	for _, option := range []string{"MaxShare", "Response", "Retry", "Role", "Eras"} {
		if !strings.Contains(log.String(), "Options."+option+" ") {
			t.Errorf("nothing is said of Options.%s: %s", option, log.String())
		}
	}
}

// documentsOf returns the documentation of the fields of Options in a file.
func documentsOf(t *testing.T, name string) map[string]string {
	t.Helper()
	file := mcptest.Must(parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments))(t)
	all := make(map[string]string)
	for _, d := range file.Decls {
		d, ok := d.(*ast.GenDecl)
		if !ok || d.Tok != token.TYPE {
			continue
		}
		spec := d.Specs[0].(*ast.TypeSpec)
		of, ok := spec.Type.(*ast.StructType)
		if !ok {
			continue
		}
		if spec.Name.Name != "Options" {
			all[spec.Name.Name] = d.Doc.Text()
			continue
		}
		for _, f := range of.Fields.List {
			for _, name := range f.Names {
				if _, has := all[name.Name]; !has {
					all[name.Name] = f.Doc.Text()
				}
			}
		}
	}
	return all
}
