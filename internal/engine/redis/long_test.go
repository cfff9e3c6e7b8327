package redis

import _ "holdfast/internal/testlong" // the flag -long
