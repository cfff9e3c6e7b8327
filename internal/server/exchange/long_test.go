package exchange

import _ "holdfast/internal/testlong" // the flag -long
