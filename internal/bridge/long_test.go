package bridge

import _ "holdfast/internal/testlong" // the flag -long
