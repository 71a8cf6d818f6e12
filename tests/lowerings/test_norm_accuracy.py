"""Norms, variances and softmax over random shapes, dtypes, strides, offsets and scales: no less exact than eager."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from metal_inductor import compiler, report

POLICIES = ["mps", "cpu"]
MANY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
FEW = settings(MANY, max_examples=4, derandomize=True, database=None, phases=[Phase.generate])

LONG = (1, 2, 7, 16, 17, 33, 64, 100, 257, 1025, 2100, 4100)
SHORT = (1, 2, 3, 5)
# (scale, offset): ordinary, beside a large offset, tiny, and so large that squares leave half precision's range.
SPREADS = ((1.0, 0.0), (3.0, 2.0), (1e-2, 1e4), (1e-2, 100.0), (1e-4, 1.0), (50.0, 0.0), (1e-6, 0.0), (1e3, 1e3))


# ---------------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True)
class Input:
    """A random tensor, described: `long` is its dimension of any length, the others are short."""

    sizes: tuple[int, ...]
    dtype: torch.dtype
    layout: str
    spread: tuple[float, float]
    seed: int

    def tensor(self) -> torch.Tensor:
        scale, offset = self.spread
        values = torch.randn(self.sizes, generator=self.generator(), dtype=torch.float64) * scale + offset
        return laid_out(values.to(self.dtype), self.layout)

    def parameters(self, size: int) -> list[torch.Tensor]:
        """A weight and a bias."""
        generator = self.generator()
        return [torch.randn(size, generator=generator).to(self.dtype) for _ in range(2)]

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of `x` with other strides; "offset" begins inside its storage and skips every other element."""
    if layout == "transposed":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "expanded":
        return x[:1].expand(x.shape)
    if layout == "offset":
        memory = torch.zeros([2 * size + 1 for size in x.shape], dtype=x.dtype)
        view = memory[tuple(slice(1, None, 2) for _ in x.shape)]
        return view.copy_(x)
    return x


@st.composite
def inputs(draw: st.DrawFn, ranks: Iterable[int] = (2, 3, 4), spreads: Iterable[Any] = SPREADS) -> Input:
    sizes = [draw(st.sampled_from(SHORT)) for _ in range(draw(st.sampled_from(tuple(ranks))))]
    sizes[draw(st.integers(0, len(sizes) - 1))] = draw(st.sampled_from(LONG))
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    layout = draw(st.sampled_from(["contiguous", "transposed", "offset", "expanded"]))
    spread = draw(st.sampled_from(tuple(spreads)))
    return Input(tuple(sizes), dtype, layout, spread, draw(st.integers(0, 1 << 20)))


# ---------------------------------------------------------------------------------------------- comparison


Results = dict[str, torch.Tensor]


def values(function: Callable[..., Results], *args: torch.Tensor) -> Results:
    return function(*args)


def gradients(function: Callable[..., Results], *args: torch.Tensor) -> Results:
    """Those of the floating-point arguments, for each result of `function` by itself, with a fixed cotangent."""
    leaves = [arg.detach().requires_grad_() for arg in args]
    found = {}
    for name, result in function(*leaves).items():
        cotangent = torch.linspace(-1, 2, result.numel()).reshape(result.shape).to(result.dtype)
        grads = torch.autograd.grad(result, leaves, cotangent, allow_unused=True, retain_graph=True)
        found.update({f"{name}, argument {k}": grad for k, grad in enumerate(grads) if grad is not None})
    return found


def no_worse_than_eager(
    function: Callable[..., Results], policy: str, *args: torch.Tensor, of: Callable = values, magnitude: float = 0.0
) -> None:
    """For each result, or its gradients: NaN and infinities where eager has them; integers equal; elsewhere an error
    against float64 of at most 1.5 times eager's, which accumulates some of them in float64, or of two units in the last
    place of the largest result or of `magnitude`."""
    torch._dynamo.reset()
    options = {"policy_device": policy}
    compiled = torch.compile(function, backend=compiler.backend, fullgraph=True, dynamic=False, options=options)
    with report.collect() as graphs:
        ours = of(compiled, *args)
    assert not [extern.name for graph in graphs for extern in graph.externs]
    exact, eager = of(function, *(arg.double() for arg in args)), of(function, *args)
    for name, theirs in eager.items():
        mine, truth = ours[name], exact[name]
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, name
        if not mine.is_floating_point():
            assert torch.equal(mine, theirs), name
            continue
        finite = theirs.isfinite()
        torch.testing.assert_close(mine[~finite], theirs[~finite], equal_nan=True)
        if finite.any():
            unit = torch.finfo(mine.dtype).eps * max(truth[finite].abs().max().item(), magnitude)
            found, allowed = (difference(result, truth, finite) for result in (mine, theirs))
            assert found <= max(1.5 * allowed, 2 * unit), f"{name}: error {found}, eager's {allowed}, unit {unit}"


def difference(result: torch.Tensor, truth: torch.Tensor, where: torch.Tensor) -> float:
    return (result.double() - truth)[where].abs().max().item()


# ---------------------------------------------------------------------------------------------- what is compared


def softmax_family(dim: int) -> Callable[..., Results]:
    def function(x: torch.Tensor) -> Results:
        return {
            "softmax": x.softmax(dim), "log_softmax": x.log_softmax(dim), "logsumexp": x.logsumexp(dim),
            "argmax": x.argmax(dim), "scaled": (x * 0.3 + 1).softmax(dim),
        }  # fmt: skip

    return function


def spreads_over(dims: Any, correction: int) -> Callable[..., Results]:
    def function(x: torch.Tensor) -> Results:
        joint = torch.var_mean(x, dims, correction=correction)
        return {"var": joint[0], "std": x.std(dims, correction=correction), "of all": x.var(correction=0)}

    return function


def norms(groups: int, eps: float) -> Callable[..., Results]:
    def function(x: torch.Tensor, *parameters: torch.Tensor) -> Results:
        row_weight, row_bias, weight, bias = parameters
        running = weight.detach(), bias.detach().abs() + 0.1
        sizes = x.shape[-1:]
        return {
            "layer": F.layer_norm(x, sizes, row_weight, row_bias, eps), "plain layer": F.layer_norm(x, sizes, eps=eps),
            "rms": F.rms_norm(x, sizes, row_weight, eps), "group": F.group_norm(x, groups, weight, bias, eps),
            "batch": F.batch_norm(x, None, None, weight, bias, training=True, eps=eps),
            "batch in evaluation": F.batch_norm(x, *running, weight, None, eps=eps),
        }  # fmt: skip

    return function


def sweep_softmax(policy: str, data: st.DataObject) -> None:
    described = data.draw(inputs())
    dim = data.draw(st.integers(-len(described.sizes), len(described.sizes) - 1))
    no_worse_than_eager(softmax_family(dim), policy, described.tensor())


def sweep_spreads(policy: str, data: st.DataObject) -> None:
    described = data.draw(inputs(spreads=(*SPREADS, (1e-25, 0.0), (1e25, 0.0))))
    axes = st.integers(0, len(described.sizes) - 1)
    dims = tuple(data.draw(st.lists(axes, min_size=1, unique=True)))
    no_worse_than_eager(spreads_over(dims, data.draw(st.integers(0, 1))), policy, described.tensor())


def sweep_norms(policy: str, data: st.DataObject) -> None:
    described = data.draw(inputs())
    batch, channels, *rest = described.sizes
    if batch * torch.Size(rest).numel() == 1:
        return  # torch refuses a batch of one value a channel
    groups = data.draw(st.sampled_from([k for k in (1, 2, 4, 5) if channels % k == 0]))
    eps = data.draw(st.sampled_from([1e-5, 1e-6, 1e-3]))
    parameters = [part for size in (described.sizes[-1], channels) for part in described.parameters(size)]
    no_worse_than_eager(norms(groups, eps), policy, described.tensor(), *parameters)


def sweep_gradients(policy: str, data: st.DataObject) -> None:
    """Eager and we subtract a mean that was rounded to float32 here, so offsets stay moderate."""
    described = data.draw(inputs(spreads=((1.0, 0.0), (3.0, 2.0), (1e-2, 1.0))))
    batch, channels, *rest = described.sizes
    if batch * torch.Size(rest).numel() == 1:
        return
    softmaxes, layers = softmax_family(data.draw(st.integers(0, 1))), norms(1, 1e-5)

    def function(x: torch.Tensor, *parameters: torch.Tensor) -> Results:
        both = {**softmaxes(x), **layers(x, *parameters)}
        return {name: result for name, result in both.items() if result.is_floating_point()}

    parameters = [part for size in (described.sizes[-1], channels) for part in described.parameters(size)]
    no_worse_than_eager(function, policy, described.tensor(), *parameters, of=gradients, magnitude=1.0)


SWEEPS = {"softmax": sweep_softmax, "spreads": sweep_spreads, "norms": sweep_norms, "gradients": sweep_gradients}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", SWEEPS)
@FEW
@given(data=st.data())
def test_errors_are_no_larger_than_eagers(name: str, policy: str, data: st.DataObject) -> None:
    SWEEPS[name](policy, data)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", SWEEPS)
@MANY
@given(data=st.data())
def test_errors_are_no_larger_than_eagers_in_many_cases(name: str, policy: str, data: st.DataObject) -> None:
    SWEEPS[name](policy, data)
