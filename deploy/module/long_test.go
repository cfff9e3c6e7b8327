package main

import _ "holdfast/internal/testlong" // the flag -long
