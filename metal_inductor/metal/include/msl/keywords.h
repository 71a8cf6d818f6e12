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
#define HUGE_VALH half(__builtin_inff())
#define HUGE_VALBF bfloat(__builtin_inff())
#define MAXFLOAT 3.40282346638528859812e+38f
#define MAXHALF 65504.0h
#define MAXBFLOAT bfloat(3.38953138925153547590e+38f)
#define M_E_F 2.718281828459045f
#define M_LOG2E_F 1.4426950408889634f
#define M_LOG10E_F 0.4342944819032518f
#define M_LN2_F 0.6931471805599453f
#define M_LN10_F 2.302585092994046f
#define M_PI_F 3.141592653589793f
#define M_PI_2_F 1.5707963267948966f
#define M_PI_4_F 0.7853981633974483f
#define M_1_PI_F 0.3183098861837907f
#define M_2_PI_F 0.6366197723675814f
#define M_2_SQRTPI_F 1.1283791670955126f
#define M_SQRT2_F 1.4142135623730951f
#define M_SQRT1_2_F 0.7071067811865476f
// A decimal literal of half is rounded once, as is a float that becomes a bfloat: no constant lies near a tie.
#define M_E_H 2.718281828459045h
#define M_LOG2E_H 1.4426950408889634h
#define M_LOG10E_H 0.4342944819032518h
#define M_LN2_H 0.6931471805599453h
#define M_LN10_H 2.302585092994046h
#define M_PI_H 3.141592653589793h
#define M_PI_2_H 1.5707963267948966h
#define M_PI_4_H 0.7853981633974483h
#define M_1_PI_H 0.3183098861837907h
#define M_2_PI_H 0.6366197723675814h
#define M_2_SQRTPI_H 1.1283791670955126h
#define M_SQRT2_H 1.4142135623730951h
#define M_SQRT1_2_H 0.7071067811865476h
#define M_E_BF bfloat(2.718281828459045f)
#define M_LOG2E_BF bfloat(1.4426950408889634f)
#define M_LOG10E_BF bfloat(0.4342944819032518f)
#define M_LN2_BF bfloat(0.6931471805599453f)
#define M_LN10_BF bfloat(2.302585092994046f)
#define M_PI_BF bfloat(3.141592653589793f)
#define M_PI_2_BF bfloat(1.5707963267948966f)
#define M_PI_4_BF bfloat(0.7853981633974483f)
#define M_1_PI_BF bfloat(0.3183098861837907f)
#define M_2_PI_BF bfloat(0.6366197723675814f)
#define M_2_SQRTPI_BF bfloat(1.1283791670955126f)
#define M_SQRT2_BF bfloat(1.4142135623730951f)
#define M_SQRT1_2_BF bfloat(0.7071067811865476f)
#define FLT_MAX 3.40282346638528859812e+38f
#define FLT_MIN 1.17549435082228750797e-38f
#define FLT_EPSILON 1.1920928955078125e-07f
#define FLT_RADIX 2
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MIN_EXP (-125)
#define FLT_MAX_EXP 128
#define FLT_MIN_10_EXP (-37)
#define FLT_MAX_10_EXP 38
#define HALF_MAX 65504.0h
#define HALF_MIN 0.00006103515625h
#define HALF_EPSILON 0.0009765625h
#define HALF_RADIX 2
#define HALF_DIG 3
#define HALF_MANT_DIG 11
#define HALF_MIN_EXP (-13)
#define HALF_MAX_EXP 16
#define HALF_MIN_10_EXP (-4)
#define HALF_MAX_10_EXP 4
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
