// Sorts the rows of a matrix, one threadgroup a row of at most 2048 values, by a bitonic network in threadgroup memory.
#include <metal_stdlib>
using namespace metal;

constant constexpr uint capacity = 2048;

// `size`: the power of two from `columns` up. The values that are missing are infinite and end up behind all others.
kernel void sort(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                 constant uint& columns [[buffer(2)]], constant uint& size [[buffer(3)]],
                 uint row [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]],
                 uint threads [[threads_per_threadgroup]]) {
  threadgroup float keys[capacity];
  in += row * columns;
  out += row * columns;

  for (uint k = i; k < size; k += threads) keys[k] = k < columns ? in[k] : INFINITY;
  // Blocks of `block` keys become sorted, every other one downwards, so that two neighbours rise and then fall.
  for (uint block = 2; block <= size; block *= 2) {
    for (uint step = block / 2; step > 0; step /= 2) {
      // The keys that other threads stored or exchanged last are there.
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint pair = i; pair < size / 2; pair += threads) {
        const uint low = 2 * pair - (pair & (step - 1)), high = low + step;
        const bool upwards = (low & block) == 0;
        const float a = keys[low], b = keys[high];
        keys[low] = upwards ? min(a, b) : max(a, b);
        keys[high] = upwards ? max(a, b) : min(a, b);
      }
    }
  }
  // All exchanges are done.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k = i; k < columns; k += threads) out[k] = keys[k];
}
