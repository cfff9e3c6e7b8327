package deferred

import _ "holdfast/internal/testlong" // the flag -long
