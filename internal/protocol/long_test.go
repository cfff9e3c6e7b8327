package protocol

import _ "holdfast/internal/testlong" // the flag -long
