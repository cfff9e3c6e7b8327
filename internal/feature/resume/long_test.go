package resume

import _ "holdfast/internal/testlong" // the flag -long
