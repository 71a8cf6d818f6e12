"""The functions through which the runtime calls a kernel: see include/msl_abi.h."""

from __future__ import annotations

from .kernel_info import Argument, KernelInfo

# Attributes whose value changes along x inside a threadgroup, with the expression of their components.
_ALONG_X = {
    "thread_position_in_grid": ("x", "t->thread_position_in_grid[1]", "t->thread_position_in_grid[2]"),
    "thread_position_in_threadgroup": (
        "x - group_begin",
        "t->thread_position_in_threadgroup[1]",
        "t->thread_position_in_threadgroup[2]",
    ),
    "threadgroup_position_in_grid": (
        "group",
        "t->threadgroup_position_in_grid[1]",
        "t->threadgroup_position_in_grid[2]",
    ),
    "threads_per_threadgroup": ("width", "t->threads_per_threadgroup[1]", "t->threads_per_threadgroup[2]"),
    "thread_index_in_threadgroup": ("index_in_group", "0u", "0u"),
    "thread_index_in_simdgroup": ("index_in_group & 31u", "0u", "0u"),
    "simdgroup_index_in_threadgroup": ("index_in_group >> 5", "0u", "0u"),
    "simdgroups_per_threadgroup": ("(group_threads + 31u) >> 5", "0u", "0u"),
    "quadgroup_index_in_threadgroup": ("index_in_group >> 2", "0u", "0u"),
    "quadgroups_per_threadgroup": ("(group_threads + 3u) >> 2", "0u", "0u"),
    "thread_index_in_quadgroup": ("index_in_group & 3u", "0u", "0u"),
}
_DERIVED = {
    "threads_per_simdgroup": "32u",
    "thread_execution_width": "32u",
    "dispatch_simdgroups_per_threadgroup": (
        "(t->dispatch_threads_per_threadgroup[0] * t->dispatch_threads_per_threadgroup[1]"
        " * t->dispatch_threads_per_threadgroup[2] + 31u) >> 5"
    ),
    "quadgroup_index_in_threadgroup": "t->thread_index_in_threadgroup >> 2",
    "quadgroups_per_threadgroup": (
        "(t->threads_per_threadgroup[0] * t->threads_per_threadgroup[1] * t->threads_per_threadgroup[2] + 3u) >> 2"
    ),
    "thread_index_in_quadgroup": "t->thread_index_in_threadgroup & 3u",
}
_SCALARS = {
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "thread_index_in_threadgroup",
}
_GROUP_WALK = """\
  const uint size = t->dispatch_threads_per_threadgroup[0];
  for (uint x = begin; x < end;) {
    const uint group = x / size, group_begin = group * size;
    const uint width = msl::smaller(size, t->threads_per_grid[0] - group_begin);
    const uint stop = msl::smaller(end, group_begin + width);
    const uint rows = t->threads_per_threadgroup[1], group_threads = width * rows * t->threads_per_threadgroup[2];
    const uint row_begin = width * (t->thread_position_in_threadgroup[1] + rows * t->thread_position_in_threadgroup[2]);
    (void)group, (void)group_threads, (void)row_begin;
%s    for (; x < stop; ++x) {
      const uint index_in_group = row_begin + (x - group_begin);
      (void)index_in_group;
      %s;
    }
  }
"""
_ROW_WALK = """\
%s  for (uint x = begin; x < end; ++x) %s;
"""
_TOGETHER = "#pragma clang loop vectorize(assume_safety)\n"


def entry_points(info: KernelInfo, expression: str, has_variables: bool, in_registers: bool) -> str:
    """Definitions of msl_fiber_N and, for a kernel that never synchronises, msl_loop_N.

    in_registers: no thread has memory of its own, so nothing but registers would be shared by threads that are computed
    together; and what they do to device memory is unordered for any GPU.
    """
    number = info.symbol
    signature = f"typedef msl::signature<decltype({expression})> signature;"
    fiber_head = (
        f"MSL_EXPORT void msl_fiber_{number}(device void *device const *buffers, device char *threadgroup_memory, "
        "device void *device const *threadgroup_arguments)"
    )
    if info.uses_fibers:
        call = _call(info, expression, has_variables, _value_of_thread)
        return f"{fiber_head} {{\n  {signature}\n  device MslThread *t = msl_self();\n{_buffers(info)}  {call};\n}}\n"
    loop_head = (
        f"MSL_EXPORT __attribute__((noinline)) void msl_loop_{number}(device MslThread *t, "
        "device void *device const *buffers, uint begin, uint end, device char *threadgroup_memory)"
    )
    call = _call(info, expression, has_variables, _value_in_loop)
    walk = (_GROUP_WALK if _needs_group(info) else _ROW_WALK) % (_TOGETHER if in_registers else "", call)
    loop = f"{loop_head} {{\n  {signature}\n{_buffers(info)}{walk}}}\n"
    fiber = (
        f"{fiber_head} {{\n  device MslThread *t = msl_self();\n  const uint x = t->thread_position_in_grid[0];\n"
        f"  msl_loop_{number}(t, buffers, x, x + 1, threadgroup_memory);\n}}\n"
    )
    return loop + fiber


def cuda_entry_point(info: KernelInfo, expression: str, has_variables: bool, zeroing: bool) -> str:
    """Definition of the CUDA kernel of that symbol. zeroing: whether threadgroup variables begin as zero.

    Parameters: the bound buffers by rising index, the grid (MslGrid in include/msl/entry_nvptx.h), then for
    each threadgroup(n) by rising n the uint offset of its memory. Dynamic shared memory holds the static threadgroup
    variables first.
    """
    buffers = sorted({a.index for a in info.arguments if a.kind == "buffer" and a.index is not None})
    groups = sorted({a.index for a in info.arguments if a.kind == "threadgroup" and a.index is not None})
    parameters = [f"device void *buffer_{i}" for i in buffers] + ["MslGrid grid"] + [f"uint offset_{i}" for i in groups]
    offsets = "".join(
        f"  threadgroup_arguments[{i}] = (device void *)(msl::shared_memory() + offset_{i});\n" for i in groups
    )
    table = f"  device void *threadgroup_arguments[{max(groups) + 1}];\n{offsets}" if groups else ""
    return (
        f"MSL_EXPORT __attribute__((nvptx_kernel)) void {info.symbol}({', '.join(parameters)}) {{\n"
        f"  typedef msl::signature<decltype({expression})> signature;\n"
        f"{'  msl::zero_shared_memory();' if zeroing else ''}  MslThread here;\n"
        "  if (!msl::enter_grid(here, grid)) return;\n"
        "  thread MslThread *t = &here;\n  ulong threadgroup_memory = msl::shared_memory();\n"
        f"{table}  {_call(info, expression, has_variables, _value_of_thread)};\n}}\n"
    )


def _needs_group(info: KernelInfo) -> bool:
    names = {a.builtin for a in info.arguments if a.builtin}
    return bool(names & (set(_ALONG_X) - {"thread_position_in_grid"}))


def _buffers(info: KernelInfo) -> str:
    used = sorted({a.index for a in info.arguments if a.kind == "buffer" and a.index is not None})
    return "".join(f"  device void *const buffer_{i} = MSL_BUFFER(buffers, {i});\n" for i in used)


def _call(info: KernelInfo, expression: str, has_variables: bool, value) -> str:
    first = 1 if has_variables else 0
    arguments = ["(threadgroup char *)(ulong)threadgroup_memory"] if has_variables else []
    for position, argument in enumerate(info.arguments):
        type_text = f"typename signature::template argument<{position + first}>"
        if argument.kind == "builtin":
            arguments.append(f"msl::attribute_for<{type_text}>::of({value(argument)})")
        elif argument.kind == "threadgroup":
            arguments.append(
                f"msl::bound<{type_text}>::from(MSL_THREADGROUP_ARGUMENT(threadgroup_arguments, {argument.index}))"
            )
        else:
            arguments.append(f"msl::bound<{type_text}>::from(buffer_{argument.index})")
    return f"{expression}({', '.join(arguments)})"


def _value_in_loop(argument: Argument) -> str:
    if argument.builtin in _ALONG_X:
        return ", ".join(_ALONG_X[argument.builtin])
    return _value_of_thread(argument)


def _value_of_thread(argument: Argument) -> str:
    name = argument.builtin
    if name in _DERIVED:
        return f"{_DERIVED[name]}, 0u, 0u"
    if name in _SCALARS:
        return f"t->{name}, 0u, 0u"
    return ", ".join(f"t->{name}[{axis}]" for axis in range(3))
