package moves

import _ "holdfast/internal/testlong" // the flag -long
