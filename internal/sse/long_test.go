package sse

import _ "holdfast/internal/testlong" // the flag -long
