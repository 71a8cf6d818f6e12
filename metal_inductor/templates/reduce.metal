// Reductions across the 32 lanes of a simdgroup for any scalar type: Metal's own cover neither 64-bit integers nor
// NaN-propagating extrema, so lanes exchange values pairwise. Every lane must be active and ends with the result.
template <typename T> inline T lane_xor(T value, ushort mask) { return simd_shuffle_xor(value, mask); }
template <> inline long lane_xor<long>(long value, ushort mask) { return as_type<long>(simd_shuffle_xor(as_type<uint2>(value), mask)); }
template <> inline ulong lane_xor<ulong>(ulong value, ushort mask) { return as_type<ulong>(simd_shuffle_xor(as_type<uint2>(value), mask)); }
template <> inline bool lane_xor<bool>(bool value, ushort mask) { return simd_shuffle_xor(ushort(value), mask) != 0; }

template <typename T> inline T combine_sum(T a, T b) { return a + b; }
template <typename T> inline T combine_prod(T a, T b) { return a * b; }
template <typename T> inline T combine_max(T a, T b) { return (a > b || a != a) ? a : b; }
template <typename T> inline T combine_min(T a, T b) { return (a < b || a != a) ? a : b; }
template <typename T> inline T combine_any(T a, T b) { return a || b; }
template <typename T> inline T combine_xor_sum(T a, T b) { return a ^ b; }

// Whether candidate (a, ia) beats (b, ib): NaN first, then the larger (smaller) value, then the lower index.
template <typename T> inline bool beats_argmax(T a, long ia, T b, long ib) {
    const bool na = a != a, nb = b != b;
    if (na != nb) return na;
    return a > b || ((a == b || na) && ia < ib);
}
template <typename T> inline bool beats_argmin(T a, long ia, T b, long ib) {
    const bool na = a != a, nb = b != b;
    if (na != nb) return na;
    return a < b || ((a == b || na) && ia < ib);
}
