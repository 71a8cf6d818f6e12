// All of <metal_stdlib>.
#ifndef MSL_STDLIB_H
#define MSL_STDLIB_H
#include "msl/array.h"
#include "msl/atomics.h"
#include "msl/builtins.h"
#include "msl/logging.h"
#include "msl/matrix.h"
#include "msl/pack.h"
#include "msl/precision.h"
#include "msl/relational.h"
#include "msl/simdgroup.h"
#include "msl/simdgroup_matrix.h"
#endif
