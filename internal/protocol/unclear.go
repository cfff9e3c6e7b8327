package protocol

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"holdfast/jsonrpc"
)

// CheckClear returns an error if a message of a client is not clear, or else nil: a server could
// read another kind, method, id, token or tool name in it than Holdfast does, and so act without the
// knowledge of rules, limits, the audit or the maps of ids. Some servers look at the method of a
// message before its id. Some JSON decoders ignore the case of letters in names of members
// ([encoding/json]), others take the first of equal names. Some servers take a list of one name for
// the name. [jsonrpc.ParseBody] has checked the message's own members.
//
// CheckClear checks only members that are mapped, or that rules apply to: the specification's members
// of params, of _meta and of the reference of a completion. It does not check the arguments of a
// tool.
func CheckClear(m *jsonrpc.Message) *jsonrpc.Error {
	if m.Kind == jsonrpc.Response {
		return nil
	}
	if err := CheckKind(m); err != nil {
		return err
	}
	if err := checkMethod(m.Method); err != nil {
		return err
	}
	if m.Kind == jsonrpc.Request && !isText(m.ID) {
		return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, `"id" is not Unicode: half of a surrogate pair is missing`)
	}
	return checkParams(m)
}

// CheckKind returns an error if the kind of a message does not fit its method, or else nil: a
// request has the name of a notification, or the reverse.
func CheckKind(m *jsonrpc.Message) *jsonrpc.Error {
	switch named := strings.HasPrefix(m.Method, notifications); {
	case m.Kind == jsonrpc.Request && named:
		return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, `%.100s is a notification: send it without an "id"`, m.Method)
	case m.Kind == jsonrpc.Notification && !named && methods[m.Method]:
		return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, `%s has no "id", and is a request: send it with one`, m.Method)
	}
	return nil
}

// checkMethod returns an error if a method is not clear: it looks like a method of the specification, and
// is another one.
func checkMethod(method string) *jsonrpc.Error {
	if _, known := methods[method]; known {
		return nil
	}
	bare := strings.TrimFunc(method, isControl)
	if i := strings.IndexFunc(bare, func(r rune) bool { return r != ' ' && isControl(r) }); i >= 0 {
		bare = bare[:i]
	}
	if n := len(notifications); len(bare) >= n && bare[:n] != notifications && strings.EqualFold(bare[:n], notifications) {
		return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "the method %.100q looks like a notification: write %q", method, notifications)
	}
	for name := range methods { // only for vendors' methods, which are rare
		if strings.EqualFold(bare, name) {
			return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "the method %.100q looks like one of the specification: write %q", method, name)
		}
	}
	return nil
}

// isControl reports whether a character is a space or a control character: some servers skip such
// characters, or end a string there.
func isControl(r rune) bool { return r <= ' ' || r == 0x7f }

// notifications begin the names of all notifications of the specification.
const notifications = "notifications/"

// methods are the methods of the specification, revisions 2024-11-05 to 2026-07-28, and of SEP-975.
// The value is true for requests, of clients and of servers, and false for notifications.
var methods = func() map[string]bool {
	all := map[string]bool{MethodCallTool: true, MethodElicit: true, MethodSample: true, MethodListRoots: true}
	for method := range safe {
		all[method] = true
	}
	for method := range unrecorded {
		all[method] = true
	}
	for _, method := range []string{
		MethodInitialized, MethodCancelled, MethodProgress, MethodLog, MethodToolsListChanged, MethodPromptsListChanged, MethodResourcesListChanged,
		MethodResourceUpdated, MethodAcknowledged, MethodTaskStatus, MethodLegacyTaskStatus, MethodResumePolicy,
		"notifications/roots/list_changed", "notifications/elicitation/complete",
	} {
		all[method] = false
	}
	return all
}()

// Members of params that are mapped, or that rules apply to, by the method. All methods have _meta.
var (
	onlyMeta        = names("_meta")
	callMembers     = names("_meta", "name", "arguments", "task", "inputResponses", "requestState")
	resourceMembers = names("_meta", "uri", "inputResponses", "requestState")
	taskMembers     = names("_meta", "taskId", "inputResponses")
	pageMembers     = names("_meta", "cursor")
	members         = map[string][][]byte{
		MethodCallTool: callMembers, MethodGetPrompt: callMembers,
		MethodReadResource: resourceMembers, MethodSubscribe: resourceMembers, MethodUnsubscribe: resourceMembers,
		MethodTaskGet: taskMembers, MethodTaskUpdate: taskMembers, MethodTaskCancel: taskMembers, MethodTaskResult: taskMembers,
		MethodToolsList: pageMembers, "prompts/list": pageMembers, "resources/list": pageMembers, "resources/templates/list": pageMembers, MethodTaskList: pageMembers,
		methodComplete:      names("_meta", "ref", "argument", "context"),
		MethodInitialize:    names("_meta", "protocolVersion", "capabilities", "clientInfo"),
		MethodSetLevel:      names("_meta", "level"),
		MethodSubscriptions: names("_meta", "notifications"),
		MethodResume:        names("_meta", "resumeToken"),
		MethodStatus:        names("_meta", "resumeToken", "requestId"),
		MethodStatusAll:     pageMembers,
		MethodCancelled:     names("_meta", "requestId"),
		MethodProgress:      names("_meta", progressToken, "progress"),
		MethodTaskStatus:    names("_meta", "taskId"), MethodLegacyTaskStatus: names("_meta", "taskId"),
	}
	refMembers  = names("type", "name", "uri")
	metaMembers = names(
		progressToken, MetaProtocolVersion, MetaClientInfo, MetaClientCapabilities, MetaLogLevel, MetaSubscriptionID, MetaRelatedTask,
		MetaIdempotencyKey, MetaResumeToken, MetaEventID, MetaLastEventID,
	)
)

const (
	methodComplete = "completion/complete"
	progressToken  = "progressToken"
)

func names(all ...string) (list [][]byte) {
	for _, name := range all {
		list = append(list, []byte(name))
	}
	return list
}

// A scan checks the names of the members of one object.
type scan struct {
	names [][]byte
	seen  uint32
	twice []byte // a name that stands twice
	like  []byte // a member that looks like the member called as
	as    []byte
}

// is returns the index of a member's name among the names, or -1.
func (s *scan) is(name []byte) int {
	for i, n := range s.names {
		if bytes.Equal(name, n) {
			if s.seen&(1<<i) != 0 {
				s.twice = n
			}
			s.seen |= 1 << i
			return i
		}
	}
	for _, n := range s.names {
		// K and ſ, which fold to letters of ASCII, have three bytes and two.
		if len(name) >= len(n) && len(name) <= 3*len(n) && (name[0]|0x20 == n[0]|0x20 || name[0] >= utf8.RuneSelf) && bytes.EqualFold(name, n) {
			s.like, s.as = name, n
		}
	}
	return -1
}

// err returns the error in the names, or nil.
func (s *scan) err(where string) *jsonrpc.Error {
	switch {
	case s.like != nil:
		return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%s has %.100q: write %q", where, s.like, s.as)
	case s.twice != nil:
		return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "a member of %s stands twice: %q", where, s.twice)
	}
	return nil
}

// checkParams checks the members of params, and the names and ids in them.
func checkParams(m *jsonrpc.Message) *jsonrpc.Error {
	list, known := members[m.Method]
	if !known {
		list = onlyMeta
	}
	subject := subjectOf(m.Method)
	var meta, about, token, id []byte
	s := scan{names: list}
	if known && len(m.Params) > 0 && m.Params[0] != '{' {
		return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "%s: params must be an object", m.Method)
	}
	jsonrpc.Each(m.Params, func(name, value []byte) {
		i := s.is(name)
		switch {
		case i < 0:
		case i == 0:
			meta = value
		case string(name) == subject:
			about = value
		case string(name) == progressToken:
			token = value
		case string(name) == "requestId":
			id = value
		}
	})
	if err := s.err("params"); err != nil {
		return err
	}
	if len(meta) > 0 && meta[0] != '{' && string(meta) != "null" {
		return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "%.100s: params._meta must be an object", m.Method)
	}
	s = scan{names: metaMembers}
	jsonrpc.Each(meta, func(name, value []byte) {
		if s.is(name) == 0 {
			token = value
		}
	})
	if err := s.err("params._meta"); err != nil {
		return err
	}
	if !isID(token) || !isID(id) {
		return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "%.100s: an id or a progress token is neither a string nor a number", m.Method)
	}
	switch {
	case subject == "" || m.Kind != jsonrpc.Request:
		return nil
	case m.Method == methodComplete:
		return checkRef(about)
	case !isName(about):
		return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "%s: params must have %q, a string without control characters", m.Method, subject)
	}
	return nil
}

// checkRef checks the reference of a completion.
func checkRef(ref []byte) *jsonrpc.Error {
	if len(ref) == 0 { // the server reports that ref is missing
		return nil
	}
	if ref[0] != '{' {
		return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "%s: params.ref must be an object", methodComplete)
	}
	s := scan{names: refMembers}
	ok := true
	jsonrpc.Each(ref, func(name, value []byte) {
		if s.is(name) >= 0 {
			ok = ok && isName(value)
		}
	})
	if err := s.err("params.ref"); err != nil {
		return err
	}
	if !ok {
		return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "%s: what params.ref names must be strings without control characters", methodComplete)
	}
	return nil
}

// subjectOf returns the member of a method's params that names its subject, or "".
func subjectOf(method string) string {
	switch method {
	case MethodSubscribe, MethodUnsubscribe:
		return "uri"
	case MethodTaskResult:
		return "taskId"
	case methodComplete:
		return "ref"
	}
	return NameField(method)
}

// isName reports whether a value is a string that all servers read as the same name: some servers
// end a string at the first NUL.
func isName(raw []byte) bool {
	if len(raw) == 0 || raw[0] != '"' || !isText(raw) {
		return false
	}
	if bytes.IndexByte(raw, '\\') < 0 && bytes.IndexByte(raw, 0x7f) < 0 { // control characters are escaped
		return true
	}
	return !strings.ContainsFunc(jsonrpc.String(raw), func(r rune) bool { return r != ' ' && isControl(r) })
}

// isID reports whether a value is an id or a token, or absent.
func isID(raw []byte) bool {
	if len(raw) == 0 || string(raw) == "null" {
		return true
	}
	return isText(raw) && (raw[0] == '"' || raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9')
}

// isText reports whether a string, as JSON, is Unicode. Halves of surrogate pairs are not: decoding turns
// all of them into the same character.
func isText(raw []byte) bool {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 || i+1 >= len(raw) {
			return true
		}
		raw = raw[i:]
		if raw[1] != 'u' {
			raw = raw[2:]
			continue
		}
		switch kind := surrogate(raw); {
		case kind == 0:
			raw = raw[6:]
		case kind == highHalf && surrogate(raw[6:]) == lowHalf:
			raw = raw[12:]
		default:
			return false
		}
	}
}

const (
	highHalf = 1
	lowHalf  = 2
)

// surrogate returns which half of a surrogate pair the escape at the beginning of a text is, or 0.
func surrogate(text []byte) int {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' || text[2]|0x20 != 'd' {
		return 0
	}
	switch c := text[3] | 0x20; {
	case c == '8' || c == '9' || c == 'a' || c == 'b':
		return highHalf
	case c >= 'c' && c <= 'f':
		return lowHalf
	}
	return 0
}
