package login

import _ "holdfast/internal/testlong" // the flag -long
