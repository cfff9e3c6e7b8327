package lograte

import _ "holdfast/internal/testlong" // the flag -long
