package reading

import _ "holdfast/internal/testlong" // the flag -long
