package whereabouts

import _ "holdfast/internal/testlong" // the flag -long
