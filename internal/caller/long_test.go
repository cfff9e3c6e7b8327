package caller

import _ "holdfast/internal/testlong" // the flag -long
