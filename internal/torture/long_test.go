package torture

import _ "holdfast/internal/testlong" // the flag -long
