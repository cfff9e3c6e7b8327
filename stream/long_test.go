package stream_test

import _ "holdfast/internal/testlong" // the flag -long
