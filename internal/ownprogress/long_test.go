package ownprogress

import _ "holdfast/internal/testlong" // the flag -long
