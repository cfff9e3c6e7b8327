package modernfront

import _ "holdfast/internal/testlong" // the flag -long
