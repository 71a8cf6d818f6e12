// Where a thread of a CUDA block is in Metal's grid, and where the block's threadgroup memory is.
#ifndef MSL_ENTRY_NVPTX_H
#define MSL_ENTRY_NVPTX_H

// Sizes of a dispatch, a kernel parameter. A grid of more blocks than CUDA launches at once comes in pieces, each of
// which says where it begins.
struct MslGrid {
  uint threads[3];
  uint group_size[3];
  uint groups[3];
  uint first_group[3];
};

namespace msl {

// Constant while a thread runs, so the compiler may drop and join reads.
#define MSL_SPECIAL_REGISTER(name, text) \
  MSL_INLINE uint name() { \
    uint result; \
    asm("mov.u32 %0, %%" text ";" : "=r"(result)); \
    return result; \
  }
MSL_SPECIAL_REGISTER(thread_x, "tid.x")
MSL_SPECIAL_REGISTER(thread_y, "tid.y")
MSL_SPECIAL_REGISTER(thread_z, "tid.z")
MSL_SPECIAL_REGISTER(block_x, "ctaid.x")
MSL_SPECIAL_REGISTER(block_y, "ctaid.y")
MSL_SPECIAL_REGISTER(block_z, "ctaid.z")
MSL_SPECIAL_REGISTER(block_threads_x, "ntid.x")
MSL_SPECIAL_REGISTER(block_threads_y, "ntid.y")
MSL_SPECIAL_REGISTER(block_threads_z, "ntid.z")

MSL_INLINE void place_group(thread MslThread &t, const thread MslGrid &grid, int axis, uint block) {
  uint group = grid.first_group[axis] + block, begin = group * grid.group_size[axis];
  t.threadgroup_position_in_grid[axis] = group;
  t.thread_position_in_grid[axis] = begin;
  t.threads_per_threadgroup[axis] = smaller(grid.group_size[axis], grid.threads[axis] - begin);
  t.dispatch_threads_per_threadgroup[axis] = grid.group_size[axis];
  t.threadgroups_per_grid[axis] = grid.groups[axis];
  t.threads_per_grid[axis] = grid.threads[axis];
}
MSL_INLINE void place_thread(thread MslThread &t, int axis, uint position) {
  t.thread_position_in_threadgroup[axis] = position;
  t.thread_position_in_grid[axis] += position;
}

// A kernel may start while the one before it ends, and waits here until that one's results are there; a launch that does
// not ask for it has nothing to wait for. The next kernel may start once all blocks of this one have.
MSL_INLINE void follow_previous_grid() {
#if MSL_OVERLAPPED_LAUNCHES
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Fills in where the thread is; false for a thread that its threadgroup does not have.
//
// Metal numbers the threads of a threadgroup, and so its simdgroups, by the threadgroup's own sizes, which are smaller at
// the edge of the grid. So it is the hardware's linear index that is kept, and the position follows from it: threads
// beyond a smaller threadgroup are the last ones, and whole warps of them end at once. Only where hardware and threadgroup
// have the same shape is the position the hardware's. The conditions are the same for a whole block.
MSL_INLINE bool enter_grid(thread MslThread &t, const thread MslGrid &grid) {
  follow_previous_grid();
  place_group(t, grid, 0, block_x());
  place_group(t, grid, 1, block_y());
  place_group(t, grid, 2, block_z());
  uint columns = t.threads_per_threadgroup[0], rows = t.threads_per_threadgroup[1], layers = t.threads_per_threadgroup[2];
  uint count = columns * rows * layers;
  uint index = thread_x() + block_threads_x() * (thread_y() + block_threads_y() * thread_z());
  t.thread_index_in_threadgroup = index;
  t.thread_index_in_simdgroup = index & 31;
  t.simdgroup_index_in_threadgroup = index >> 5;
  t.simdgroups_per_threadgroup = (count + 31) >> 5;
  if (block_threads_x() == columns && block_threads_y() == rows && block_threads_z() == layers) {
    place_thread(t, 0, thread_x());
    place_thread(t, 1, thread_y());
    place_thread(t, 2, thread_z());
    return true;
  }
  uint row = 0, layer = 0;
  if (count != columns) {
    row = index / columns;
    index -= row * columns;
    layer = row / rows;
    row -= layer * rows;
  }
  place_thread(t, 0, index);
  place_thread(t, 1, row);
  place_thread(t, 2, layer);
  return t.thread_index_in_threadgroup < count;
}

MSL_INLINE ulong shared_memory() {
  ulong result;
  asm("mov.u64 %0, msl_shared;" : "=l"(result));
  return result & ~15ul;  // tells clang of the alignment, so that it may join neighbouring accesses
}
MSL_SPECIAL_REGISTER(shared_memory_bytes, "dynamic_smem_size")
#undef MSL_SPECIAL_REGISTER

// For a kernel whose threadgroup variables begin as zero. All threads of the block take part, before those that the
// threadgroup does not have end.
MSL_INLINE void zero_shared_memory() {
  uint columns = block_threads_x(), rows = block_threads_y();
  uint index = thread_x() + columns * (thread_y() + rows * thread_z());
  for (uint at = 4 * index; at < shared_memory_bytes(); at += 4 * columns * rows * block_threads_z())
    *(threadgroup uint *)(shared_memory() + at) = 0;
  asm volatile("bar.sync 0;" ::: "memory");
}

}  // namespace msl

// The launch says how large the block's memory is.
__asm__(".extern .shared .align 16 .b8 msl_shared[];");

#endif
