package jsonrpc

import _ "holdfast/internal/testlong" // the flag -long
