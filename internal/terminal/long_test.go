package terminal

import _ "holdfast/internal/testlong" // the flag -long
