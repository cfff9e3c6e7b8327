package pace

import _ "holdfast/internal/testlong" // the flag -long
