package idempotency

import _ "holdfast/internal/testlong" // the flag -long
