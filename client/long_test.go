package client

import _ "holdfast/internal/testlong" // the flag -long
