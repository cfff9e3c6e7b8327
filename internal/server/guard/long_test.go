package guard

import _ "holdfast/internal/testlong" // the flag -long
