package followcall

import _ "holdfast/internal/testlong" // the flag -long
