package streaming

import _ "holdfast/internal/testlong" // the flag -long
