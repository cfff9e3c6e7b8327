package ticket

import _ "holdfast/internal/testlong" // the flag -long
