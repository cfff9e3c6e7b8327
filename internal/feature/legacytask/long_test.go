package legacytask

import _ "holdfast/internal/testlong" // the flag -long
