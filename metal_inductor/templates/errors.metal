// The error word: nonzero once any thread met an index outside its tensor.
inline bool in_range(long index, long size, device atomic_int* errors) {
    const bool inside = index >= 0 && index < size;
    if (!inside) atomic_store_explicit(errors, 1, memory_order_relaxed);
    return inside;
}
inline long checked_index(long index, long size, device atomic_int* errors) {
    return in_range(index, size, errors) ? index : 0;
}
