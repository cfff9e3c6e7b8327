package mux

import _ "holdfast/internal/testlong" // the flag -long
