package statefile

import _ "holdfast/internal/testlong" // the flag -long
