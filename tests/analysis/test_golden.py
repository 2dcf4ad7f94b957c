"""The decision space of the zoo's models: golden tables, read by hand and explained.

One line per group in program order: label, sizes, colors, conflict sets, and why it is set aside.
Run this file with a model's name to print its table anew.
"""

import re
import sys
from collections.abc import Callable

import pytest

from shardwright.analysis import Analysis
from tests.tiny import analysis_of


def table(analysis: Analysis) -> list[str]:
    lines = []
    for g in analysis.all_groups:
        sets = sum(k in g.conflict_sets for k in analysis.set_group)
        sizes = "/".join(map(str, g.sizes))
        label = re.sub(r":\d+", "", g.label)  # lines of the zoo may move
        lines.append(f"{label:20}{sizes:7}{len(g.colors):<4}{sets:<4}{g.set_aside or ''}".rstrip())
    return lines


def _transformer_decode() -> str:
    """One token per sequence against a cache of T = 16 positions, two layers.

    Eight of the train step's groups, less S (there is one token), plus T, the cache's own dim, one
    color per layer because nothing joins the caches of two layers. B, H and both K reach into the
    cache, which is larger than the weights and so names them. No [S, S], no conflict.
    """
    return """
embedding[0]        256    1   0
embedding[1]        32     1   0
w1[1]               128    2   0
k[2]                8      2   0
k[3]                8      2   0
v[3]                8      2   0
positions[0]        16     1   0
k[0]                8      1   0
k[1]                16     2   0
"""


def _moe_forward() -> str:
    """The transformer's groups, and what the router adds.

    E of the expert weights (w1[0], w2[0]) is one color per layer; E of the router's gates
    (router[1]) is another, because choosing experts by top_k and one-hot is a comparison with a
    fresh iota, not a dim that passes through. The k-th choice (2) and the capacity C (8) belong to
    no argument: they are named by the line that makes them.
    """
    return """
embedding[0]        256    1   0
w1[1]               32     1   0
router[1]           8      2   0
w1[0]               8      2   0
w1[2]               128    2   0
wk[1]               8      2   0
wk[2]               8      2   0
wo[1]               8      2   0
positions[0]        16     1   2
tokens[0]           8      1   0
moe.py route[2]     2      2   0
moe.py route[3]     8      2   0
"""


def _gnn_train() -> str:
    """Nodes, edges, the latent dim, and the hidden dims of five MLPs.

    Edges' features, senders and receivers are one color; nodes meet it only by gather and
    segment-sum. The latent dim D = 32 joins the node MLP's input of 2 D (the two halves of a
    concatenation, at most twice the size) but not the edge MLP's input of 3 D = 96. The hidden dims
    of the rounds are one decision per kind, with a color per round; those of the two encoders stay
    apart though their weights have the same shapes: one works on 256 edges, the other on 64 nodes.
    """
    return """
node.w1[0]          32/64  1   0
targets[1]          8      1   0
encode_edges.w2[0]  48     1   0
edges[1]            8      1   0
encode_nodes.w2[0]  48     1   0
nodes[1]            8      1   0
edge.w1[1]          48     2   0
edge.w1[0]          96     2   0
node.w1[1]          48     2   0
edges[0]            256    1   0
nodes[0]            64     1   0
"""


def _resnet_forward() -> str:
    """Batch, two image dims, three colours, and the channels between convolutions.

    Height and width keep their color through strides of two (16 and 8). Channels of a residual
    stream are one color: stem and block 0's input (8), block 0's output (32), output of blocks 1
    and 2 (64). Inside a block, conv1 -> conv2 and conv2 -> conv3 are two colors. Blocks 1 and 2
    differ in stride and input width, so only what lies behind conv2 is alike. Kernel sides (3) are
    dims like others; those of the small stem are set aside.
    """
    return """
convskip[2]         8      1   0
conv2[2]            8      1   0
conv2[0]            3      1   0
conv2[1]            3      1   0
conv2[3]            8      1   0
convskip[2]#2       32     1   0
conv2[2]#2          16     1   0
conv2[0]#2          3      2   0
conv2[1]#2          3      2   0
conv2[3]#2          16     2   0
convskip[3]         64     1   0
conv2[2]#3          16     1   0
head[1]             24     1   0
stem[0]             3      1   0   tiny
stem[1]             3      1   0   tiny
images[3]           3      1   0
images[0]           16     1   0
images[1]           16/8   1   0
images[2]           16/8   1   0
"""


def _vit_forward() -> str:
    """An image side is (patches, pixels): 16 = 4 x 4, cut by the patch reshape.

    The sequence is (rows of patches, columns of patches), two colors, so each layer has two
    conflict sets on its [S, S] scores, one per color. Pixels inside a patch and the three colours
    meet only the patch embedding. The rest is a transformer without vocabulary.
    """
    return """
w1[0]               32     1   0
head[1]             24     1   0
w1[1]               128    2   0
wk[1]               8      2   0
wk[2]               4      2   0
wo[1]               4      2   0
images[1]           4      1   0
images[2]           4      1   0
images[3]           3      1   0
images[1]#2         4      1   2
images[2]#2         4      1   2
images[0]           8      1   0
"""


def _unet_forward() -> str:
    """Two levels down and up; attention in the middle.

    Group norm reads C as (8 groups, C / 8) wherever it normalises, so most channel dims are two
    colors; up-sampling reads Y as (Y / 2, 2), so an image side of 16 is (4, 2, 2) and its major
    part is the only color that all levels share. The scores of the middle are [Y X, Y X]: one
    conflict set for each. The two blocks of the middle are alike (2 colors); kernel sides (3) are
    alike where their convolutions are.
    """
    return """
block.conv2[3]      8      1   0
block.conv2[3]#2    2      1   0
shrink[2]           8      1   0
shrink[2]#2         2      1   0
block.conv1[3]      8      1   0
block.conv1[3]#2    2      1   0
block.conv1[0]      3      3   0
block.conv1[1]      3      3   0
time[0]             32     1   0
shrink[0]           3      1   0
shrink[1]           3      1   0
shrink[2]#3         8      1   0
shrink[2]#4         4      1   0
block.conv1[3]#3    8      1   0
block.conv1[3]#4    4      1   0
block.conv1[0]#2    3      3   0
block.conv1[1]#2    3      3   0
shrink[0]#2         3      1   0
shrink[1]#2         3      1   0
block1.conv1[2]     8      1   0
block1.conv1[2]#2   8      1   0
wk[1]               8      1   0
wk[2]               8      1   0
wo[1]               8      1   0
block1.conv1[3]     8      2   0
block1.conv1[3]#2   8      2   0
block1.conv1[0]     3      4   0
block1.conv1[1]     3      4   0
out[0]              3      1   0
out[1]              3      1   0
out[3]              8      1   0
stem[0]             3      1   0
stem[1]             3      1   0
images[3]           8      1   0
time1[0]            32/16  1   0
time1[1]            32     1   0
block.conv1[2]      8      1   0
block.conv1[2]#2    8      1   0
block.conv1[3]#5    8      1   0
block.conv1[3]#6    4      1   0
block.conv1[0]#3    3      2   0
block.conv1[1]#3    3      2   0
block.conv2[3]#3    32     1   0
grow[3]             32     1   0
block.conv1[2]#3    8      1   0
block.conv1[2]#4    4      1   0
block.conv1[3]#7    8      1   0
block.conv1[3]#8    2      1   0
block.conv1[0]#4    3      2   0
block.conv1[1]#4    3      2   0
grow[3]#2           16     1   0
images[0]           8      1   0
images[1]           4      1   1
images[1]#2         2      1   0
images[1]#3         2      1   0
images[2]           4      1   1
images[2]#2         2      1   0
images[2]#3         2      1   0
"""


MODELS = [
    _transformer_decode, _moe_forward, _gnn_train, _resnet_forward, _vit_forward, _unet_forward,
]  # fmt: skip


@pytest.mark.parametrize("golden", MODELS, ids=lambda f: f.__name__[1:])
def test_table(golden: Callable[[], str]) -> None:
    assert table(analysis_of(golden.__name__[1:])) == golden().strip().splitlines()


@pytest.mark.parametrize("name", ["moe", "gnn", "resnet", "vit", "unet"])
def test_training_decides_what_inference_decides(name: str) -> None:
    """A backward pass and Adam bring no dim of their own: the same argument dims can be split."""
    infer, train = analysis_of(f"{name}_forward"), analysis_of(f"{name}_train")
    parameters = {
        d.removeprefix("params") for g in infer.all_groups for d in g.dims if d[:6] == "params"
    }
    trained = {
        d.removeprefix("state.params")
        for g in train.all_groups
        for d in g.dims
        if d.startswith("state.params")
    }
    assert parameters == trained


if __name__ == "__main__":
    print("\n".join(table(analysis_of(sys.argv[1]))))
