package dpop_test

import _ "holdfast/internal/testlong" // the flag -long
