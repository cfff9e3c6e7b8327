package hosts

import _ "holdfast/internal/testlong" // the flag -long
