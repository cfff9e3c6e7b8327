package config

import _ "holdfast/internal/testlong" // the flag -long
