package outage

import _ "holdfast/internal/testlong" // the flag -long
