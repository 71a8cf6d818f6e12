inline int index_floor_div(int a, int b) { return a / b - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0); }
inline long index_floor_div(long a, long b) { return a / b - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0); }
inline int index_floor_mod(int a, int b) { return a - index_floor_div(a, b) * b; }
inline long index_floor_mod(long a, long b) { return a - index_floor_div(a, b) * b; }
inline int index_max(int a, int b) { return a > b ? a : b; }
inline long index_max(long a, long b) { return a > b ? a : b; }
inline int index_min(int a, int b) { return a < b ? a : b; }
inline long index_min(long a, long b) { return a < b ? a : b; }
// Keeps Metal's compiler from fusing the division and the remainder, which it gets wrong.
inline int index_safe_mod(int a, int b) { volatile thread int q = a; return q % b; }
inline long index_safe_mod(long a, long b) { volatile thread long q = a; return q % b; }
