package again

import _ "holdfast/internal/testlong" // the flag -long
