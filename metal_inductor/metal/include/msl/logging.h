// <metal_logging>: messages go nowhere, as on a GPU whose log nobody reads.
#ifndef MSL_LOGGING_H
#define MSL_LOGGING_H
#include "msl/keywords.h"

namespace metal {

struct os_log {
  template <class... Names> constexpr os_log(Names...) {}
  template <class... Arguments> void log(Arguments...) const {}
  template <class... Arguments> void log_debug(Arguments...) const {}
  template <class... Arguments> void log_info(Arguments...) const {}
  template <class... Arguments> void log_error(Arguments...) const {}
  template <class... Arguments> void log_fault(Arguments...) const {}
};
constexpr constant os_log os_log_default = os_log();

}  // namespace metal

#endif
