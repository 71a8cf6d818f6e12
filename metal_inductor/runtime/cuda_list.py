"""Frozen lists of dispatches on torch's current CUDA stream, each run of them launched as one CUDA graph.

Work is ordered by the stream, so ATen calls between runs need no waiting. A launch of a graph costs the host one call,
however many kernels it holds. Where the buffers of a kernel have moved or its sizes have changed since the last launch,
its parameters are set in the instantiated graph first; most point to weights, caches and the arena, and stay.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from metal_inductor import policy, torch_compat
from metal_inductor.metal import clang
from metal_inductor.runtime.cuda import CudaLibrary, Shape, architecture, buffer_indices, check, driver


class CudaList:
    """A frozen dispatch list: every launch's parameters lie ready, pointers are filled in through a table."""

    def __init__(self, slots: int) -> None:
        self.pointers = np.zeros(slots, dtype=np.uint64)
        self.dispatches: list[Launch] = []
        self.users: dict[int, list[int]] = {}  # slot -> dispatches whose parameters it holds
        self.host: dict[int, np.ndarray] = {}
        self._runs: dict[tuple[int, int], _Run] = {}

    def add(self, library: CudaLibrary, kernel: str, slots: Sequence[int], threads: Sequence[int], group: Any) -> int:
        places = {index: self.host.get(slot, self.pointers[slot : slot + 1]) for index, slot in enumerate(slots)}
        sizes = {index: self.host[slot].nbytes for index, slot in enumerate(slots) if slot in self.host}
        self.dispatches.append(Launch(library, kernel, places, sizes, threads, group))
        for slot in slots:
            self.users.setdefault(slot, []).append(len(self.dispatches) - 1)
        return len(self.dispatches) - 1

    def set_threads(self, dispatch: int, threads: Sequence[int], group_size: Sequence[int]) -> None:
        self.dispatches[dispatch].set_threads(threads, group_size)
        for run in self._runs.values():
            run.stale.add(dispatch)

    def bind(self, slot: int, tensor: torch.Tensor) -> None:
        self.pointers[slot] = tensor.data_ptr()

    def bind_host(self, slot: int, array: np.ndarray) -> None:
        """The array's values are parameters of the dispatches added from now on, as they are at each commit."""
        self.host[slot] = array

    def commit(self, begin: int, end: int) -> None:
        stream = torch_compat.raw_cuda_stream(torch.cuda.current_device())
        if end - begin < policy.MIN_GRAPH_DISPATCHES or torch.cuda.is_current_stream_capturing():
            for dispatch in self.dispatches[begin:end]:
                dispatch.launch(stream)
            return
        run = self._runs.get((begin, end))
        if run is None:
            run = self._runs[begin, end] = _Run(self, begin, end)
        run.launch(stream)


class Launch:
    """One dispatch: the array of parameter addresses points into the pointer table, host arrays and the sizes."""

    def __init__(
        self,
        library: CudaLibrary,
        kernel: str,
        places: Mapping[int, np.ndarray],
        by_value: Mapping[int, int],
        threads: Sequence[int],
        group: Sequence[int],
    ) -> None:
        info = library.kernels[kernel]
        self._library, self._kernel = library, kernel
        indices = buffer_indices(info)
        self._places = [places[index] for index in indices]  # keeps them alive
        self._by_value = {index: size for index, size in by_value.items() if index in indices}
        self._shared = info.threadgroup_bytes
        self._addresses = (ctypes.c_void_p * (len(indices) + 1))(*(place.ctypes.data for place in self._places))
        self._parameters = ctypes.addressof(self._addresses)
        self.set_threads(threads, group)

    def set_threads(self, threads: Sequence[int], group: Sequence[int]) -> None:
        shape = Shape(threads, group)
        self._function = self._library.function(self._kernel, shape.block_threads, self._by_value)
        self._block = shape.block
        self._pieces = [(shape.grid(first), blocks) for first, blocks in shape.pieces()]

    @property
    def pieces(self) -> int:
        """Launches that the dispatch takes: one, none for an empty grid, several for one beyond CUDA's limits."""
        return len(self._pieces)

    def launch(self, stream: int) -> None:
        start = driver().cuLaunchKernel
        for grid, blocks in self._pieces:
            self._addresses[len(self._places)] = ctypes.addressof(grid)
            check(start(self._function, *blocks, *self._block, self._shared, stream, self._parameters, 0))

    def node_parameters(self) -> Iterator[Any]:
        """The parameters of a graph node for each launch, to be used before the next one is asked for."""
        for grid, blocks in self._pieces:
            self._addresses[len(self._places)] = ctypes.addressof(grid)
            node = driver().CUDA_KERNEL_NODE_PARAMS()
            node.func = self._function
            node.gridDimX, node.gridDimY, node.gridDimZ = blocks
            node.blockDimX, node.blockDimY, node.blockDimZ = self._block
            node.sharedMemBytes = self._shared
            node.kernelParams = self._parameters
            yield node


class _Run:
    """Dispatches begin..end-1 of a list as a CUDA graph, one after the other.

    Launches already under way keep the parameters that they were started with.
    """

    def __init__(self, owner: CudaList, begin: int, end: int) -> None:
        self._owner, self._begin, self._end = owner, begin, end
        self.stale: set[int] = set()  # dispatches whose grid has changed
        self._handles: tuple[Any, Any] | None = None
        self._build()

    def launch(self, stream: int) -> None:
        self._refresh()
        check(driver().cuGraphLaunch(self._handles[1], stream))

    def _build(self) -> None:
        api = driver()
        graph = check(api.cuGraphCreate(0))
        self._nodes: dict[int, list[Any]] = {}
        for dispatch in range(self._begin, self._end):
            launch = self._owner.dispatches[dispatch]
            self._nodes[dispatch] = [
                check(api.cuGraphAddKernelNode(graph, None, 0, parameters)) for parameters in launch.node_parameters()
            ]
        _add_chain(graph, [node for nodes in self._nodes.values() for node in nodes])
        self._handles = graph, check(api.cuGraphInstantiate(graph, 0))
        self._remember()

    def _remember(self) -> None:
        self.stale.clear()
        self._pointers = self._owner.pointers.copy()
        self._host = {slot: array.copy() for slot, array in self._owner.host.items()}

    def _refresh(self) -> None:
        """Sets the parameters that differ from those of the last launch."""
        changed = self._changed()
        if not changed:
            return
        api = driver()
        for dispatch in changed:
            launch, nodes = self._owner.dispatches[dispatch], self._nodes[dispatch]
            if launch.pieces != len(nodes):
                self._release()
                self._build()
                return
            for node, parameters in zip(nodes, launch.node_parameters()):
                check(api.cuGraphExecKernelNodeSetParams(self._handles[1], node, parameters))
        self._remember()

    def _changed(self) -> set[int]:
        owner = self._owner
        slots = np.flatnonzero(owner.pointers != self._pointers).tolist()
        slots += [slot for slot, array in owner.host.items() if not np.array_equal(array, self._host[slot])]
        users = {dispatch for slot in slots for dispatch in owner.users.get(slot, ())}
        return {dispatch for dispatch in users | self.stale if self._begin <= dispatch < self._end}

    def _release(self) -> None:
        graph, executable = self._handles
        self._handles = None
        check(driver().cuGraphExecDestroy(executable))
        check(driver().cuGraphDestroy(graph))

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the process the driver may be gone
            if self._handles:
                self._release()


def _add_chain(graph: Any, nodes: Sequence[Any]) -> None:
    """Lets each kernel node run after the one before it. Where kernels wait themselves (`clang.overlaps_launches`), the
    next one's blocks are started while the last of the one before still run."""
    api, count = driver(), len(nodes) - 1
    if count < 1:
        return
    edge = api.CUgraphEdgeData()
    if clang.overlaps_launches(architecture()):
        edge.from_port = int(api.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
        edge.type = int(api.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    # CUDA 13 has the version with data for each edge under the plain name, CUDA 12 another under it
    add = getattr(api, "cuGraphAddDependencies_v2", api.cuGraphAddDependencies)
    check(add(graph, list(nodes[:-1]), list(nodes[1:]), [edge] * count, count))
