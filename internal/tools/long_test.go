package tools

import _ "holdfast/internal/testlong" // the flag -long
