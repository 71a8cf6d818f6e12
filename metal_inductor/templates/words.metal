// sum + the products of the elements in 16 bytes of each operand. A bfloat is the upper half of a float.
template <typename T> inline float dot_word(uint4 a, uint4 b, float sum);
template <> inline float dot_word<float>(uint4 a, uint4 b, float sum) {
    for (int i = 0; i < 4; ++i) sum = fma(as_type<float>(a[i]), as_type<float>(b[i]), sum);
    return sum;
}
template <> inline float dot_word<half>(uint4 a, uint4 b, float sum) {
    for (int i = 0; i < 4; ++i) {
        const half2 left = as_type<half2>(a[i]), right = as_type<half2>(b[i]);
        sum = fma(float(left.x), float(right.x), sum);
        sum = fma(float(left.y), float(right.y), sum);
    }
    return sum;
}
template <> inline float dot_word<bfloat>(uint4 a, uint4 b, float sum) {
    for (int i = 0; i < 4; ++i) {
        sum = fma(as_type<float>(a[i] << 16), as_type<float>(b[i] << 16), sum);
        sum = fma(as_type<float>(a[i] & 0xffff0000u), as_type<float>(b[i] & 0xffff0000u), sum);
    }
    return sum;
}
// The elements of 16 bytes.
template <typename T> inline void unpack_word(uint4 word, thread float* elements);
template <> inline void unpack_word<float>(uint4 word, thread float* elements) {
    for (int i = 0; i < 4; ++i) elements[i] = as_type<float>(word[i]);
}
template <> inline void unpack_word<half>(uint4 word, thread float* elements) {
    for (int i = 0; i < 4; ++i) {
        const half2 pair = as_type<half2>(word[i]);
        elements[2 * i] = float(pair.x);
        elements[2 * i + 1] = float(pair.y);
    }
}
template <> inline void unpack_word<bfloat>(uint4 word, thread float* elements) {
    for (int i = 0; i < 4; ++i) {
        elements[2 * i] = as_type<float>(word[i] << 16);
        elements[2 * i + 1] = as_type<float>(word[i] & 0xffff0000u);
    }
}
