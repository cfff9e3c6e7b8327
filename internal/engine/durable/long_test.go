package durable

import _ "holdfast/internal/testlong" // the flag -long
