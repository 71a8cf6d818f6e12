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
// 16 bytes of elements, as they are stored.
template <typename T> inline uint4 pack_word(thread const float* elements);
template <> inline uint4 pack_word<float>(thread const float* elements) {
    uint4 word;
    for (int i = 0; i < 4; ++i) word[i] = as_type<uint>(elements[i]);
    return word;
}
template <> inline uint4 pack_word<half>(thread const float* elements) {
    uint4 word;
    for (int i = 0; i < 4; ++i) word[i] = as_type<uint>(half2(half(elements[2 * i]), half(elements[2 * i + 1])));
    return word;
}
template <> inline uint4 pack_word<bfloat>(thread const float* elements) {
    uint4 word;
    for (int i = 0; i < 4; ++i)
        word[i] = uint(as_type<ushort>(bfloat(elements[2 * i]))) | (uint(as_type<ushort>(bfloat(elements[2 * i + 1]))) << 16);
    return word;
}
// N neighbouring elements, whole words: read as they are, as floats, and written.
template <typename T, int N> inline void read_words(device const T* source, thread uint4* words) {
    for (int i = 0; i < N * int(sizeof(T)) / 16; ++i) words[i] = ((device const uint4*)source)[i];
}
template <typename T, int N> inline void unpack_words(thread const uint4* words, thread float* elements) {
    for (int i = 0; i < N * int(sizeof(T)) / 16; ++i) unpack_word<T>(words[i], elements + i * (16 / int(sizeof(T))));
}
template <typename T, int N> inline void write_words(device T* target, thread const float* elements) {
    for (int i = 0; i < N * int(sizeof(T)) / 16; ++i)
        ((device uint4*)target)[i] = pack_word<T>(elements + i * (16 / int(sizeof(T))));
}
// The same at the end of a row, where only the first `count` elements may exist.
template <typename T, int N> inline void read_some(device const T* source, int count, thread uint4* words) {
    if (count >= N) {
        read_words<T, N>(source, words);
        return;
    }
    float elements[N];
    for (int e = 0; e < N; ++e) elements[e] = e < count ? float(source[e]) : 0.0f;
    for (int i = 0; i < N * int(sizeof(T)) / 16; ++i) words[i] = pack_word<T>(elements + i * (16 / int(sizeof(T))));
}
template <typename T, int N> inline void write_some(device T* target, int count, thread const float* elements) {
    if (count >= N) {
        write_words<T, N>(target, elements);
        return;
    }
    for (int e = 0; e < N; ++e)
        if (e < count) target[e] = T(elements[e]);
}
