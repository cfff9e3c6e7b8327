package placement

import _ "holdfast/internal/testlong" // the flag -long
