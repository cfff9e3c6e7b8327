package sdk

import _ "holdfast/internal/testlong" // the flag -long
