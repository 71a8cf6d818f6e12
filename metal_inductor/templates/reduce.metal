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

// Whether a beats b, whose place is lower.
template <typename T> inline bool improves_argmax(T a, T b) { return a > b || (a != a && b == b); }
template <typename T> inline bool improves_argmin(T a, T b) { return a < b || (a != a && b == b); }

// A value and its place become the better of two.
template <typename T> inline void merge_argmax(thread T& value, thread long& place, T other, long other_place) {
    if (beats_argmax(other, other_place, value, place)) { value = other; place = other_place; }
}
template <typename T> inline void merge_argmin(thread T& value, thread long& place, T other, long other_place) {
    if (beats_argmin(other, other_place, value, place)) { value = other; place = other_place; }
}

// Softmax in one walk (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018): `peak` is the maximum so
// far and `total` the sum of exp(x - peak). A part without finite elements adds nothing; an infinite or NaN peak makes
// the total NaN, as exp(inf - inf) does where the maximum is known beforehand.
inline float softmax_scale(float peak, float higher) { return peak == higher ? 1.0f : metal::precise::exp(peak - higher); }
inline void merge_softmax(thread float& peak, thread float& total, float other, float other_total) {
    const float higher = combine_max<float>(peak, other);
    total = total * softmax_scale(peak, higher) + other_total * softmax_scale(other, higher);
    peak = higher;
}
template <int N> inline void accumulate_softmax(thread float& peak, thread float& total, thread const float* x) {
    float higher = peak;
    #pragma unroll
    for (int e = 0; e < N; ++e) higher = combine_max<float>(higher, x[e]);
    const float shift = higher == -INFINITY ? 0.0f : higher;
    float powers[N];
    #pragma unroll
    for (int e = 0; e < N; ++e) powers[e] = metal::precise::exp(x[e] - shift);
    #pragma unroll
    for (int width = N / 2; width > 0; width /= 2)
        #pragma unroll
        for (int e = 0; e < width; ++e) powers[e] += powers[e + width];
    total = total * softmax_scale(peak, higher) + powers[0];
    peak = higher;
}
// Of 2 * `mask` neighbouring lanes: the maximum first, so that each lane scales its total once.
inline void across_lanes_softmax(thread float& peak, thread float& total, ushort mask) {
    float higher = peak;
    for (ushort m = mask; m > 0; m >>= 1) higher = combine_max<float>(higher, lane_xor<float>(higher, m));
    total *= softmax_scale(peak, higher);
    for (ushort m = mask; m > 0; m >>= 1) total += lane_xor<float>(total, m);
    peak = higher;
}
// Of a row of -inf the total is NaN.
inline float close_softmax(float peak, float total) { return peak == -INFINITY ? NAN : total; }
