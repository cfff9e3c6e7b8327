package clientkind

import _ "holdfast/internal/testlong" // the flag -long
