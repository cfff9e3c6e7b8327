package likeness

import _ "holdfast/internal/testlong" // the flag -long
