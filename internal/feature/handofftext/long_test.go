package handofftext

import _ "holdfast/internal/testlong" // the flag -long
