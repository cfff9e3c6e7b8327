package flight

import _ "holdfast/internal/testlong" // the flag -long
