package revival_test

import _ "holdfast/internal/testlong" // the flag -long
