package limit

import _ "holdfast/internal/testlong" // the flag -long
