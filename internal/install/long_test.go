package install

import _ "holdfast/internal/testlong" // the flag -long
