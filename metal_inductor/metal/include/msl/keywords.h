// Metal's keywords and scalar types in terms of C++ for OpenCL.
//
// device and constant are both global memory: `device` is the narrower space, so a constant pointer never converts to a
// device pointer, while both convert to the generic space that implicit copy constructors and unqualified methods take.
#ifndef MSL_KEYWORDS_H
#define MSL_KEYWORDS_H

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable

#define device __attribute__((opencl_global_device))
#define constant const __global
#define threadgroup __local
#define thread __private

// Names that OpenCL reserves and Metal does not.
#define atomic_int msl_atomic_int
#define atomic_uint msl_atomic_uint
#define atomic_float msl_atomic_float
#define atomic_ulong msl_atomic_ulong
#define atomic_long msl_atomic_long
#define memory_order msl_memory_order
#define memory_order_relaxed msl_memory_order_relaxed
#define memory_order_acquire msl_memory_order_acquire
#define memory_order_release msl_memory_order_release
#define memory_order_acq_rel msl_memory_order_acq_rel
#define memory_order_seq_cst msl_memory_order_seq_cst
#define memory_scope msl_memory_scope

#define METAL_FUNC inline __attribute__((always_inline))
#define MSL_INLINE inline __attribute__((always_inline))
#define MSL_GENERIC __generic

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef ulong size_t;
typedef long ptrdiff_t;
typedef long intptr_t;
typedef ulong uintptr_t;

#define NAN __builtin_nanf("")
#define INFINITY __builtin_inff()
#define HUGE_VALF __builtin_inff()
#define MAXFLOAT 3.40282346638528859812e+38f
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_E_H 2.71828182845904523536h
#define M_PI_H 3.14159265358979323846h
#define FLT_MAX 3.40282346638528859812e+38f
#define FLT_MIN 1.17549435082228750797e-38f
#define FLT_EPSILON 1.1920928955078125e-07f
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define HALF_MAX 65504.0h
#define HALF_MIN 0.00006103515625h
#define HALF_EPSILON 0.0009765625h
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define CHAR_MAX 127
#define CHAR_MIN (-128)
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807L
#define LONG_MIN (-9223372036854775807L - 1)
#define ULONG_MAX 18446744073709551615UL

#endif
