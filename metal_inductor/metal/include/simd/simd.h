#ifndef MSL_PREPROCESSING
#include "msl/stdlib.h"
#endif
