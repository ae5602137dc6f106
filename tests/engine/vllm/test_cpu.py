"""The grouped LoRA computation compared with the plain one, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.agent.engines.vllm import environment  # noqa: F401

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.vllm

SLOTS, RANK, WIDTH_IN, WIDTH_OUT = 3, 4, 6, 10


def weights(rows: int, columns: int, seed: int) -> torch.Tensor:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SLOTS, 1, rows, columns, generator=generator)


@given(st.lists(st.integers(-1, SLOTS - 1), min_size=1, max_size=12), st.integers(0, 1000))
def test_each_row_gets_its_own_adapter_and_the_base_none(slots: list[int], seed: int) -> None:
    import torch

    from inference.agent.engines.vllm.cpu import expand, groups_of, shrink

    a, b = weights(RANK, WIDTH_IN, seed), weights(WIDTH_OUT, RANK, seed + 1)
    x = torch.randn(len(slots), WIDTH_IN, generator=torch.Generator().manual_seed(seed))
    hidden, y = torch.zeros(len(slots), RANK), torch.ones(len(slots), WIDTH_OUT)
    groups = groups_of(torch.tensor(slots))
    shrink(groups, hidden, x, a, 2.0)
    expand(groups, y, hidden, b, add_inputs=True)
    for row, slot in enumerate(slots):
        if slot < 0:
            assert torch.equal(y[row], torch.ones(WIDTH_OUT)), "not a bit of the base moves"
        else:
            expected = 1 + 2.0 * (b[slot, 0] @ (a[slot, 0] @ x[row]))
            torch.testing.assert_close(y[row], expected)


@given(
    st.lists(st.integers(-1, SLOTS - 1), min_size=1, max_size=12),
    st.lists(st.integers(1, WIDTH_OUT), min_size=1, max_size=3),
    st.integers(0, 1000),
)
def test_a_linear_layer_of_several_parts_is_computed_like_each_part_alone(
    slots: list[int], widths: list[int], seed: int
) -> None:
    import torch

    from inference.agent.engines.vllm.cpu import expand, groups_of, linear, shrink

    a = tuple(weights(RANK, WIDTH_IN, seed + part) for part in range(len(widths)))
    b = tuple(weights(width, RANK, seed - part) for part, width in enumerate(widths))
    x = torch.randn(len(slots), WIDTH_IN, generator=torch.Generator().manual_seed(seed))
    groups = groups_of(torch.tensor(slots))
    y = torch.ones(len(slots), sum(widths))
    linear(groups, y, x, a, b, 2.0)
    alone = [torch.ones(len(slots), width) for width in widths]
    for part, expected in enumerate(alone):
        hidden = torch.zeros(len(slots), RANK)
        shrink(groups, hidden, x, a[part], 2.0)
        expand(groups, expected, hidden, b[part], add_inputs=True)
    torch.testing.assert_close(y, torch.cat(alone, dim=1))
    base = torch.tensor(slots) < 0
    assert torch.equal(y[base], torch.ones(int(base.sum()), sum(widths)))


def test_padded_columns_are_left_alone() -> None:
    import torch

    from inference.agent.engines.vllm.cpu import expand, groups_of

    y = torch.zeros(2, WIDTH_OUT + 3)
    x = torch.ones(2, RANK)
    expand(groups_of(torch.tensor([0, 1])), y, x, weights(WIDTH_OUT, RANK, 1), add_inputs=False)
    assert y[:, :WIDTH_OUT].abs().min() > 0
    assert torch.equal(y[:, WIDTH_OUT:], torch.zeros(2, 3))
