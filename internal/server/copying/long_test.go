package copying

import _ "holdfast/internal/testlong" // the flag -long
