package remote

import _ "holdfast/internal/testlong" // the flag -long
