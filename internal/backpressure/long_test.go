package backpressure

import _ "holdfast/internal/testlong" // the flag -long
