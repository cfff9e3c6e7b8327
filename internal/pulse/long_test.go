package pulse

import _ "holdfast/internal/testlong" // the flag -long
