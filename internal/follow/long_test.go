package follow

import _ "holdfast/internal/testlong" // the flag -long
