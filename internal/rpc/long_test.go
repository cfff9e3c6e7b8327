package rpc

import _ "holdfast/internal/testlong" // the flag -long
