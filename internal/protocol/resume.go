package protocol

// The requests of SEP-975, and one for all that a client has. They are Holdfast's
// own, and no server behind it hears of them or of their tokens.
const (
	MethodResume    = "requests/resume"
	MethodStatus    = "requests/getStatus"
	MethodStatusAll = "requests/getStatus/all"
)

// CapabilityResumable is the capability of clients that know SEP-975.
const CapabilityResumable = "resumableRequests"

// MethodResumePolicy tells a client of SEP-975 how to resume a request.
const MethodResumePolicy = "notifications/requests/resumePolicy"

// Resumes says whether a method is one of these.
func Resumes(method string) bool {
	return method == MethodResume || method == MethodStatus || method == MethodStatusAll
}
