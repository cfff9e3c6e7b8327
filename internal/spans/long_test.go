package spans

import _ "holdfast/internal/testlong" // the flag -long
