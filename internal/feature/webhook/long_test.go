package webhook

import _ "holdfast/internal/testlong" // the flag -long
