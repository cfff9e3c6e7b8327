package outagelog

import _ "holdfast/internal/testlong" // the flag -long
