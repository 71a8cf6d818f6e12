// What metal::fast is on an NVIDIA GPU: the hardware's approximations, where their errors are within those that Metal
// allows its fast math. Sines and cosines are for arguments near zero, as Metal's are.
#ifndef MSL_FAST_NVPTX_H
#define MSL_FAST_NVPTX_H
#include "msl/vectors.h"

namespace msl {

#define MSL_APPROXIMATION(name, text) \
  MSL_INLINE float name(float x) { \
    float result; \
    asm(text ".approx.f32 %0, %1;" : "=f"(result) : "f"(x)); \
    return result; \
  }
MSL_APPROXIMATION(fast_exp2, "ex2")
MSL_APPROXIMATION(fast_log2, "lg2")
MSL_APPROXIMATION(fast_sin, "sin")
MSL_APPROXIMATION(fast_cos, "cos")
MSL_APPROXIMATION(fast_sqrt, "sqrt")
MSL_APPROXIMATION(fast_rsqrt, "rsqrt")
#undef MSL_APPROXIMATION

MSL_INLINE float fast_exp(float x) { return fast_exp2(x * 1.44269504f); }
// What the product with log2(10) loses in rounding is left to a factor near one.
MSL_INLINE float fast_exp10(float x) {
  float power = x * 3.32192809f;
  float lost = __builtin_elementwise_fma(x, 3.32192809f, -power);
  float result = fast_exp2(power);
  return power - power == 0.0f ? __builtin_elementwise_fma(result * lost, 0.693147181f, result) : result;
}
MSL_INLINE float fast_log(float x) { return fast_log2(x) * 0.693147181f; }
MSL_INLINE float fast_log10(float x) { return fast_log2(x) * 0.301029996f; }
MSL_INLINE float fast_divide(float x, float y) {
  float result;
  asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}

}  // namespace msl

#endif
