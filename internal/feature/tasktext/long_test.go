package tasktext

import _ "holdfast/internal/testlong" // the flag -long
