package journal

import _ "holdfast/internal/testlong" // the flag -long
