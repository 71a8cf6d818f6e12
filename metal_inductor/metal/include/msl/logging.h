// <metal_logging>: messages go nowhere, as on a GPU whose log nobody reads.
#ifndef MSL_LOGGING_H
#define MSL_LOGGING_H
#include "msl/keywords.h"

namespace metal {

enum log_type { log_type_debug, log_type_info, log_type_default, log_type_error, log_type_fault };

struct os_log {
  template <class... Names> constexpr os_log(Names...) {}
  template <class... Arguments> void log_with_type(log_type, constant char *, Arguments...) const {}
#define MSL_LOG(name) template <class... Arguments> void name(constant char *, Arguments...) const {}
  MSL_LOG(log)
  MSL_LOG(log_debug)
  MSL_LOG(log_info)
  MSL_LOG(log_error)
  MSL_LOG(log_fault)
#undef MSL_LOG
};
constexpr constant os_log os_log_default = os_log();

}  // namespace metal

#endif
