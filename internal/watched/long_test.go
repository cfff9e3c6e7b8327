package watched

import _ "holdfast/internal/testlong" // the flag -long
