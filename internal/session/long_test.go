package session

import _ "holdfast/internal/testlong" // the flag -long
