package process

import _ "holdfast/internal/testlong" // the flag -long
