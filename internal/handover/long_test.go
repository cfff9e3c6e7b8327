package handover

import _ "holdfast/internal/testlong" // the flag -long
