"""Matrix products in compiled text: lines as jaxlib 0.10.2 writes them, FLOP by formula."""

from __future__ import annotations

import pytest

from shardwright.cost.devices import device
from shardwright.cost.roofline import dot_s, stream_s
from shardwright.referee.estimates import roofline
from shardwright.referee.hlo import parse
from shardwright.referee.products import Product, product_of

_GEMM = (
    'custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{'
    '"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":'
    '["1"],"lhs_batch_dimensions":["0"],"rhs_batch_dimensions":["0"]}}}'
)


def _convolution(direction: str) -> str:
    return f'dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$conv{direction}"'


BATCH, IMAGE, WINDOW, IN, OUT = 32, 14, 3, 64, 128
X, K, Y = (f"bf16[{BATCH},{IMAGE},{IMAGE},{IN}]", f"bf16[{OUT},{WINDOW},{WINDOW},{IN}]",
           f"bf16[{BATCH},{IMAGE},{IMAGE},{OUT}]")  # fmt: skip
SAME = Product("bf16", 1, BATCH * IMAGE**2, OUT, WINDOW**2 * IN)

# operands, result, the call: what it computes
CASES = {
    "cuBLAS": (
        "bf16[8,200,80]", "bf16[8,80,300]", "(bf16[8,200,300]{2,1,0}, s8[33554432]{0})", _GEMM,
        Product("bf16", 8, 200, 300, 80),
    ),
    "convolution": (X, K, f"({Y}{{3,2,1,0}}, u8[0]{{0}})", _convolution("Forward"), SAME),
    "gradient of images": (Y, K, f"({X}, u8[0]{{0}})", _convolution("BackwardInput"), SAME),
    "gradient of a kernel": (X, Y, f"({K}, u8[0]{{0}})", _convolution("BackwardFilter"), SAME),
    "a sort": ("f32[8]", "f32[8]", "(f32[8], u8[4])", 'custom_call_target="__cub$Sort"', None),
}  # fmt: skip


@pytest.mark.parametrize("left, right, result, call, product", CASES.values(), ids=CASES)
def test_a_library_call_is_the_product_that_it_computes(
    left: str, right: str, result: str, call: str, product: Product | None
) -> None:
    text = f"""HloModule m, is_scheduled=true

ENTRY %main (a: {left}, b: {right}) -> {result} {{
  %a = {left} parameter(0)
  %b = {right} parameter(1)
  ROOT %c = {result} custom-call(%a, %b), {call}
}}
"""
    module = parse(text)
    main = module.computations["main"]
    assert product_of(main, main.root) == product


def test_scratch_memory_of_a_library_is_not_written() -> None:
    h100 = device("h100")
    text = f"""HloModule m, is_scheduled=true

ENTRY %main (a: bf16[1,8,8], b: bf16[1,8,8]) -> bf16[1,8,8] {{
  %a = bf16[1,8,8] parameter(0)
  ROOT %c = (bf16[1,8,8], s8[33554432]{{0}}) custom-call(%a, %a), {_GEMM}
}}
"""
    module = parse(text)
    main = module.computations["main"]
    bytes_ = 3 * 8 * 8 * 2
    seconds = roofline(h100)(module, main, main.root)
    dot = dot_s(h100, "bf16", m=8, n=8, k=8)
    assert seconds == pytest.approx(h100.op_overhead_s + max(dot, stream_s(h100, bytes_)))
