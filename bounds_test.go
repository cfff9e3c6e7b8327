package holdfast_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// boundTests are the tests that exceed the bounds of docs/sizing.md ("Bounds"), by the beginnings of the table's rows. Each
// test has its directory before its name.
var boundTests = map[string][]string{
	"sessions that are open on a node":                            {"internal/session TestLimits", "internal/server TestAdmission"},
	"requests in flight on a node":                                {"internal/session TestLimits", "internal/server TestAdmission"},
	"calls that one client begins in a time":                      {". TestRate", ". TestAddressRate"},
	"calls in flight of one client; of one tool":                  {". TestQueue", "internal/limit TestCalls"},
	"sessions on a node with processes":                           {"e2e TestMaxProcesses"},
	"the part of `--max-sessions`":                                {"e2e TestMaxProcesses", "internal/session TestMaxShare", ". TestMaxShareOfMemory"},
	"how long a process runs whose session did nothing":           {"e2e TestUnusedProcess"},
	"requests in flight in one session":                           {"internal/session TestLimits"},
	"how long a session lives":                                    {"internal/server TestExpiry", "internal/server TestRevivedAfterExpiry"},
	"how long a session is idle before it falls asleep":           {"internal/server TestSleeps"},
	"notes of sessions that sleep":                                {"internal/revival TestManyNotes"},
	"how long after its beginning a session can be revived":       {"internal/server TestNotRevived", "internal/revival TestManyEnded"},
	"how long an ended call can be read":                          {"internal/server TestExpiredEventID"},
	"how long after its connection has broken a call is found":    {"internal/server TestCutGrace", "internal/again TestManyStranded"},
	"what other nodes have told of such calls":                    {"internal/likeness TestManyHints"},
	"how long a tool's call of a client of 2026-07-28 goes on":    {"internal/server TestCutGrace"},
	"how long a client of SEP-975":                                {"internal/session TestAwayForTooLong"},
	"a request's body":                                            {"internal/server TestBadLength", "internal/server TestDuplexTooLarge"},
	"fields of a request's header":                                {"internal/server TestManyFields"},
	"a request's header":                                          {"internal/server TestHugeHeader"},
	"what open connections take":                                  {"e2e TestMemoryUnderLoad", "internal/server/watch TestTurnedAway", "internal/server TestOpenStreamsWithinMemory", "internal/server TestStreamsOfOneConnectionWithinMemory"},
	"how long the header of a request may take":                   {"e2e TestSlowConnections"},
	"how long a body, or a message of a WebSocket":                {"internal/server TestSlowBody", "internal/server TestDrippingBody"},
	"memory for messages of calls and for requests":               {"e2e TestMemoryUnderLoad"},
	"– messages of calls":                                         {"e2e TestMemoryUnderLoad", "internal/server TestOneClientLeavesRoom", ". TestMaxShareOfMemory"},
	"– what sessions keep":                                        {"e2e TestMemoryUnderLoad", "internal/server TestSessionsWithinMemory", "internal/server TestSubscriptionsWithinMemory", "internal/server TestCarriersWithinMemory"},
	"– messages of servers that are being read":                   {"e2e TestMemoryUnderLoad", "internal/budget TestArrivalWaits"},
	"– requests that are read or run":                             {"internal/server TestBodiesWithinBudget", "internal/server TestCallsWithinBudget", "internal/server TestPiecesWithinBudget"},
	"how long an ended call is kept after its client has read it": {"internal/server TestAcknowledged"},
	"an id, a method, a progress token":                           {"internal/server TestWordsAreBounded"},
	"messages in a batch":                                         {"internal/server TestBatchBound"},
	"questions of a server in one result":                         {"internal/translate TestManyQuestions"},
	"stderr of one process in the log":                            {"e2e TestStderrBounded"},
	"lines in the log of one text":                                {"internal/lograte TestRate", "internal/lograte TestTexts"},
	"tokens that the issuer is asked about at a time":             {"e2e TestAuthMadeUpTokens"},
	"an `initialize` request; what a client of 2026-07-28 says":   {"internal/server TestWordsAreBounded", "internal/server TestLongClient"},
	"a URI in a request":                                          {"internal/server TestLongURIs"},
	"requests of one client that look for all its calls":          {"internal/session TestListsBounded"},
	"sessions without an owner that a node remembers":             {"internal/whereabouts TestOrphansBounded"},
	"how long a store that nodes share has the claim":             {". TestClaimsLeave", "internal/feature/idempotency TestClaimsBounded"},
	"an idempotency key":                                          {"internal/server TestKeyInMessage"},
	"how long one write waits for a client that does not read":    {"internal/server TestSlowReader"},
	"how long a server may take to start and to answer":           {". TestOpeningBounded", "backend/remote TestOpeningBounded", "internal/servers TestShareOpeningBounded", "internal/merge TestFailingCostsNoTime"},
	"how long an upstream server may be out of reach":             {"cmd/holdfast TestScripts"}, // testdata/upstream.txtar
	"how long an upstream server may take to begin its answer":    {"client TestInputSilence"},
	"a line of a stdio server":                                    {"backend/process TestFaults"},
	"messages that wait until a stdio server reads them":          {"backend/process TestNeverReads"},
	"wrong tokens for the [live page]":                            {". TestPageActionsAreLogged", "internal/live TestTries", "internal/live TestManyTriers"},
	"webhooks that wait to be sent":                               {"internal/webhook TestFull"},
	"how long a webhook is tried":                                 {"internal/webhook TestGiveUp", "internal/webhook TestLate"},
	"messages of a server to Holdfast's client":                   {"client TestWebSocketTooLarge", "client TestInputComments"},
}

// Each bound in the guide for operators has a test that exceeds it.
func TestBoundsHaveTests(t *testing.T) {
	t.Parallel()
	testlong.OneGoroutine(t)
	text := mcptest.Must(os.ReadFile(filepath.Join("docs", "sizing.md")))(t)
	_, section, _ := strings.Cut(string(text), "\n## Bounds\n")
	section, _, _ = strings.Cut(section, "\n## ")
	used := make(map[string]bool)
	rows := 0
	for line := range strings.Lines(section) {
		row, ok := strings.CutPrefix(line, "| ")
		if !ok || strings.HasPrefix(row, "bound |") {
			continue
		}
		rows++
		found := ""
		for begins := range boundTests {
			if strings.HasPrefix(row, begins) && len(begins) > len(found) {
				found = begins
			}
		}
		if found == "" {
			t.Errorf("no test goes over the bound of the row that begins %.80q", row)
		}
		used[found] = true
	}
	if rows < len(boundTests) {
		t.Errorf("the table has %d rows, and %d have tests", rows, len(boundTests))
	}
	in := make(map[string][]string) // the tests, by directory
	for begins, tests := range boundTests {
		if !used[begins] {
			t.Errorf("no row begins %q", begins)
		}
		for _, test := range tests {
			dir, name, _ := strings.Cut(test, " ")
			if in[dir] == nil {
				in[dir] = testsIn(t, dir)
			}
			if !slices.Contains(in[dir], name) {
				t.Errorf("%s: there is no %s in %s", begins, name, dir)
			}
		}
	}
}

var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// testsIn returns the names of the tests in a directory.
func testsIn(t *testing.T, dir string) (names []string) {
	files := mcptest.Must(filepath.Glob(filepath.Join(dir, "*_test.go")))(t)
	for _, file := range files {
		text := mcptest.Must(os.ReadFile(file))(t)
		for _, found := range testFunction.FindAllSubmatch(text, -1) {
			names = append(names, string(found[1]))
		}
	}
	return names
}
