package auth

import _ "holdfast/internal/testlong" // the flag -long
