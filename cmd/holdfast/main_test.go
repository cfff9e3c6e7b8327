package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/internal/testport"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "printed" {
		printedMain(os.Args[2:])
		return
	}
	testscript.Main(patient{m}, map[string]func(){"holdfast": main, "halting": haltingMain})
}

// patient runs more tests at a time than usual.
type patient struct{ m *testing.M }

// Run implements testscript.TestingM.
func (p patient) Run() int {
	testlong.AtOnce(testlong.Either(48, 24)) // with -long some work more than they wait
	return p.m.Run()
}

// TestScripts runs testdata/*.txtar: the command line as a user types it. TAKEN is an address on
// which another program listens, and no program listens on FREE. HOSTS has configurations of hosts.
func TestScripts(t *testing.T) {
	t.Parallel()
	taken := mcptest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = taken.Close() })
	free := testport.Addr(t)
	hosts := mcptest.Must(filepath.Abs("../../internal/config/testdata"))(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serves": serves, "exits": exits, "server": server, "restart": restart, "proxy": proxy,
			"forgetful": forgetful, "curious": curious, "signals": signals, "chat": chat, "assigns": assigns, "shelf": shelf,
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("TAKEN", taken.Addr().String())
			env.Setenv("FREE", free)
			env.Setenv("HOSTS", hosts)
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "state"))
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond != "long" {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			return testlong.Wanted(), nil
		},
		RequireUniqueNames: true,
	})
}

// serves runs "holdfast serve" with flags until it prints how to try it, stops it
// with SIGTERM, and demands exit code 0. Scripts can check its output as stderr.
func serves(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("serves cannot be negated: use ! exec holdfast serve")
	}
	signals(ts, false, append([]string{"0", `^Try it: |"msg":"serving"`, "TERM", "--", "holdfast", "serve", "--listen", "127.0.0.1:0"}, args...))
}

// exits runs a command that must end with the exit code CODE.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) >= 2, "exits CODE COMMAND ARG...")
	wantExit(ts, ts.Exec(args[1], args[2:]...), args[0])
}
