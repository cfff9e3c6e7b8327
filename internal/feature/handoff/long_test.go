package handoff

import _ "holdfast/internal/testlong" // the flag -long
