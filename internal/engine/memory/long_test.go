package memory

import _ "holdfast/internal/testlong" // the flag -long
