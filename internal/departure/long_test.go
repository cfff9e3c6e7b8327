package departure

import _ "holdfast/internal/testlong" // the flag -long
