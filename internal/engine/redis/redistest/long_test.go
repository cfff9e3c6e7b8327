package redistest

import _ "holdfast/internal/testlong" // the flag -long
