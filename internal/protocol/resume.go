package protocol

// The requests of SEP-975, and a request for the status of all requests of a client. Holdfast
// answers them itself: no server behind it sees them or their tokens.
const (
	MethodResume    = "requests/resume"
	MethodStatus    = "requests/getStatus"
	MethodStatusAll = "requests/getStatus/all"
)

// CapabilityResumable is the capability of clients that know SEP-975.
const CapabilityResumable = "resumableRequests"

// MethodResumePolicy tells a client of SEP-975 how to resume a request.
const MethodResumePolicy = "notifications/requests/resumePolicy"

// Resumes reports whether a method is one of these requests.
func Resumes(method string) bool {
	return method == MethodResume || method == MethodStatus || method == MethodStatusAll
}
