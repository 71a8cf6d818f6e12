"""Runs of CUDA dispatches as graphs: what the driver is asked to do, with a driver that takes notes in its place."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from metal_inductor.metal.kernel_info import Argument, KernelInfo
from metal_inductor.runtime import cuda_list


class NotingDriver:
    """Counts calls; nodes and handles are numbers."""

    class CUDA_KERNEL_NODE_PARAMS:
        pass

    def __init__(self):
        self.made, self.set, self.graphs, self.launched, self.kernels = [], [], 0, 0, 0

    def cuGraphCreate(self, flags):
        return 0, "graph"

    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1
    CUgraphDependencyType = types.SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)

    class CUgraphEdgeData:
        from_port = type = 0

    def cuGraphAddKernelNode(self, graph, before, count, parameters):
        assert (before, count) == (None, 0)
        self.made.append([parameters.gridDimX, None])
        return 0, len(self.made)

    def cuGraphAddDependencies(self, graph, begins, ends, edges, count):
        assert len(begins) == len(ends) == len(edges) == count
        for begin, end in zip(begins, ends):
            self.made[end - 1][1] = [begin]
        self.edges = {(edge.from_port, edge.type) for edge in edges}
        return (0,)

    def cuGraphInstantiate(self, graph, flags):
        self.graphs += 1
        return 0, "executable"

    def cuGraphExecKernelNodeSetParams(self, executable, node, parameters):
        self.set.append((node, parameters.gridDimX))
        return (0,)

    def cuGraphLaunch(self, executable, stream):
        self.launched += 1
        return (0,)

    def cuLaunchKernel(self, *arguments):
        self.kernels += 1
        return (0,)

    def cuGraphExecDestroy(self, executable):
        return (0,)

    cuGraphDestroy = cuGraphExecDestroy


@pytest.fixture
def noting(monkeypatch):
    driver = NotingDriver()
    monkeypatch.setattr(cuda_list, "driver", lambda: driver)
    monkeypatch.setattr(cuda_list, "architecture", lambda: "sm_90")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda_list.torch_compat, "raw_cuda_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return driver


def four_dispatches(**host):
    """A list of slots 0..5: dispatch k reads slots k and k + 1, the last one also slot 5."""
    arguments = tuple(Argument(f"b{k}", "buffer", k, "device", "device float*") for k in range(3))
    library = types.SimpleNamespace(
        kernels={"two": KernelInfo("two", "k0", arguments[:2]), "three": KernelInfo("three", "k1", arguments)},
        function=lambda name, threads, by_value: name,
    )
    dispatches = cuda_list.CudaList(6)
    for slot, array in host.items():
        dispatches.bind_host(int(slot.removeprefix("slot")), array)
    for k in range(3):
        dispatches.add(library, "two", [k, k + 1], (256, 1, 1), (64, 1, 1))
    dispatches.add(library, "three", [3, 4, 5], (256, 1, 1), (64, 1, 1))
    return dispatches


def test_a_run_is_one_graph_of_kernels_in_order(noting):
    dispatches = four_dispatches()
    for _ in range(3):
        dispatches.commit(0, 4)
    assert noting.made == [[4, None], [4, [1]], [4, [2]], [4, [3]]]
    assert (noting.graphs, noting.launched, noting.set, noting.kernels) == (1, 3, [], 0)


def test_only_kernels_whose_buffers_moved_are_changed(noting):
    dispatches = four_dispatches()
    dispatches.commit(0, 4)
    dispatches.bind(1, torch.zeros(4))
    dispatches.commit(0, 4)
    assert sorted(node for node, _ in noting.set) == [1, 2]
    dispatches.commit(0, 4)
    assert len(noting.set) == 2


@pytest.mark.parametrize("architecture, edge", [("sm_80", (0, 0)), ("sm_90", (1, 1)), ("sm_120a", (1, 1))])
def test_a_kernel_that_waits_itself_starts_while_the_one_before_ends(noting, monkeypatch, architecture, edge):
    monkeypatch.setattr(cuda_list, "architecture", lambda: architecture)
    four_dispatches().commit(0, 4)
    assert noting.edges == {edge}


def test_sizes_and_grids_that_change(noting):
    sizes = np.zeros(2, dtype=np.int64)
    dispatches = four_dispatches(slot5=sizes)
    dispatches.commit(0, 4)
    sizes[1] = 7
    dispatches.commit(0, 4)
    assert noting.set == [(4, 4)]
    dispatches.set_threads(0, (640, 1, 1), (64, 1, 1))
    dispatches.commit(0, 4)
    assert noting.set[1:] == [(1, 10)] and noting.graphs == 1


def test_a_grid_that_becomes_empty_makes_another_graph(noting):
    dispatches = four_dispatches()
    dispatches.commit(0, 4)
    dispatches.set_threads(2, (0, 1, 1), (64, 1, 1))
    dispatches.commit(0, 4)
    assert noting.graphs == 2 and len(noting.made) == 4 + 3


def test_a_short_run_and_one_under_capture_are_launched_kernel_by_kernel(noting, monkeypatch):
    dispatches = four_dispatches()
    dispatches.commit(0, 2)
    assert (noting.kernels, noting.graphs) == (2, 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    dispatches.commit(0, 4)
    assert (noting.kernels, noting.graphs) == (6, 0)
