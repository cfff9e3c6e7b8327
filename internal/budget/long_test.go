package budget

import _ "holdfast/internal/testlong" // the flag -long
