"""Collectives: the formulas of the JAX scaling book, its worked examples and measurements."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import measured_links
from shardwright.cost.devices import Device, device, devices
from shardwright.cost.links import KINDS, Network
from shardwright.errors import ShardwrightError
from shardwright.mesh import Link, Mesh

LARGE = 1e12  # bytes: latency and message size no longer matter


def book(name: str) -> Device:
    """A device all of whose links carry a gather, as the book has it; the TPU compiler uses two."""
    return Device.like(name, gather_links=0)


def rate(mesh: object, name: str, kind: str, axes: tuple[str, ...]) -> float:
    """Bytes per second of a very large collective."""
    return 1 / Network(mesh, book(name)).curve(kind, axes).s_per_byte


# W = link bytes/s of the device; a ring uses two links of a device, a line one.
@pytest.mark.parametrize(
    "mesh, name, axes, expected",
    [
        # a full axis of 16 wraps around on v5e and v6e, a shorter one does not
        ({"x": 16, "y": 16}, "tpu-v5e", ("x",), 2 * 4.5e10 * 16 / 15),
        ({"x": 8, "y": 16}, "tpu-v5e", ("x",), 4.5e10 * 8 / 7),
        ({"x": 16, "y": 16}, "tpu-v6e", ("x",), 2 * 9e10 * 16 / 15),
        # two axes: their links work together
        ({"x": 16, "y": 16}, "tpu-v5e", ("x", "y"), 4 * 4.5e10 * 256 / 255),
        ({"x": 4, "y": 4}, "tpu-v5e", ("x", "y"), 2 * 4.5e10 * 16 / 15),
        # one axis over both dims of a 4 x 4 slice
        ({"x": 16}, "tpu-v5e", ("x",), 2 * 4.5e10 * 16 / 15),
        ({"x": 256}, "tpu-v5e", ("x",), 4 * 4.5e10 * 256 / 255),
        # v4 and v5p wrap around in multiples of 4, in slices made of cubes
        ({"x": 4, "y": 4, "z": 4}, "tpu-v4", ("x",), 2 * 4.5e10 * 4 / 3),
        ({"x": 8, "y": 4, "z": 4}, "tpu-v5p", ("x", "y", "z"), 6 * 9e10 * 128 / 127),
        ({"x": 64}, "tpu-v5p", ("x",), 6 * 9e10 * 64 / 63),
        ({"x": 6, "y": 8, "z": 8}, "tpu-v5p", ("x",), 9e10 * 6 / 5),
        ({"x": 2, "y": 2, "z": 4}, "tpu-v5p", ("z",), 9e10 * 4 / 3),
        # a ring of 2 is one link
        ({"x": 2, "y": 4}, "tpu-v5e", ("x",), 4.5e10 * 2 / 1),
        # 2 x 8 on a 4 x 4 slice: y is a line of 4 and the nearest half of the other dim
        ({"x": 2, "y": 8}, "tpu-v5e", ("x",), 4.5e10 / 2 * 2 / 1),
        ({"x": 2, "y": 8}, "tpu-v5e", ("y",), 2 * 4.5e10 * 8 / 7),
        # three axes on two dims: x and y share one, every link serves two groups of x
        ({"x": 2, "y": 2, "z": 4}, "tpu-v5e", ("y",), 4.5e10 * 2 / 1),
        ({"x": 2, "y": 2, "z": 4}, "tpu-v5e", ("x",), 4.5e10 / 2 * 2 / 1),
        ({"x": 2, "y": 2, "z": 4}, "tpu-v5e", ("x", "y"), 4.5e10 * 4 / 3),
        # switched: inside a node (E = link_efficiency), across nodes, both
        ({"x": 8}, "h100", ("x",), 0.95 * 4.5e11 * 8 / 9 * 8 / 7),
        ({"x": 4, "y": 8}, "h100", ("y",), 0.95 * 4.5e11 * 8 / 9 * 8 / 7),
        ({"x": 4, "y": 8}, "h100", ("x",), 4.0e11 / 8 * 4 / 3),
        ({"x": 16, "y": 2}, "h100", ("x",), 4 * 4.0e11 / 8 * 4 / 3),
        # over 2 nodes the node is the limit (book, GPUs: B / 514e9 at its peak), over 32 it is not
        ({"x": 16}, "h100", ("x",), 0.95 * 4.5e11 * 8 / 9 * 8 / 7),
        ({"x": 256}, "h100", ("x",), 413e9),
        # 128 devices of NVL72 racks: 64 in each of two
        ({"x": 128}, "gb200", ("x",), 0.86 * 9e11 * 64 / 65 * 64 / 63),
    ],
)
def test_gather_bandwidth(
    mesh: dict[str, int], name: str, axes: tuple[str, ...], expected: float
) -> None:
    assert rate(mesh, name, "all-gather", axes) == pytest.approx(expected, rel=2e-3)
    assert rate(mesh, name, "reduce-scatter", axes) == pytest.approx(expected, rel=2e-3)
    halves, whole = expected / 2, rate(mesh, name, "all-reduce", axes)
    gain = device(name).all_reduce_gain  # where a switch adds up
    assert halves * (1 - 2e-3) <= whole <= halves * gain * (1 + 2e-3)


# What the TPU compiler names in `collective_algorithm_config` (libtpu 0.0.42): 1DAllGather and
# StrategyRing over all members of a group, UniDirectionNDRingStrategy of an all-reduce over a
# plane, and an all-reduce over three dims in place of a gather.
@pytest.mark.parametrize(
    "mesh, name, axes, gathers, reduces",  # links that work at once
    [
        ({"x": 256}, "tpu-v5e", ("x",), 2, 4),
        ({"x": 16, "y": 16}, "tpu-v6e", ("x", "y"), 2, 4),
        ({"x": 16, "y": 16}, "tpu-v6e", ("x",), 2, 2),
        ({"x": 16, "y": 4}, "tpu-v5p", ("x",), 2, 4),
        ({"x": 64}, "tpu-v5p", ("x",), 3, 6),  # gathered as an all-reduce, twice the bytes
        ({"x": 4, "y": 4}, "tpu-v5e", ("x", "y"), 2, 2),  # lines
    ],
)
def test_links_that_work_at_once(
    mesh: dict[str, int], name: str, axes: tuple[str, ...], gathers: int, reduces: int
) -> None:
    network, link = Network(mesh, name), device(name).link_bytes_per_s
    n = math.prod(mesh[axis] for axis in axes)
    for kind in ("all-gather", "reduce-scatter"):
        found = network.curve(kind, axes).s_per_byte
        assert found == pytest.approx((n - 1) / n / (gathers * link), rel=0.15 if n == 16 else 2e-3)
    found = network.curve("all-reduce", axes).s_per_byte
    assert found == pytest.approx(2 * (n - 1) / n / (reduces * link), rel=0.15 if n == 16 else 2e-3)


# Of a few bytes, in hops of 1 us: half of a ring through all members, or an all-reduce's way to the
# farthest one and back. libtpu 0.0.42 names the same algorithms (tests/compilers).
@pytest.mark.parametrize(
    "chips, name, hops",
    [
        (8, "tpu-v6e", 8 // 2), (16, "tpu-v6e", 16 // 2), (32, "tpu-v6e", 32 // 2),
        (64, "tpu-v6e", 2 * (7 + 7)), (256, "tpu-v6e", 2 * (8 + 8)), (64, "tpu-v5p", 2 * 3 * 2),
    ],
)  # fmt: skip
def test_a_ring_through_several_dims_is_long(chips: int, name: str, hops: int) -> None:
    network = Network({"x": chips}, name)
    for kind in ("all-gather", "reduce-scatter"):
        latency_s = network.seconds(kind, ("x",), 1e-3)
        assert latency_s == pytest.approx(network.device.latency_s + hops * 1e-6)


# Bytes are the local shard s; V = s n is the whole array.
@pytest.mark.parametrize(
    "mesh, name, axes, s_per_byte",
    [
        ({"x": 16, "y": 16}, "tpu-v5e", ("x",), 16 / 4 / 9e10),  # V / (4 W), the book's quarter
        ({"x": 8, "y": 16}, "tpu-v5e", ("x",), 8 / 4 / 4.5e10),  # the middle link of a line
        ({"x": 2, "y": 4}, "tpu-v5e", ("x",), 1 / 2 / 4.5e10),  # half of the shard over one link
        ({"x": 16, "y": 16}, "tpu-v5e", ("x", "y"), 16 / 4 / 9e10),  # dims work together
        ({"x": 8}, "h100", ("x",), 7 / 8 / 4.5e11),  # V (n - 1) / n^2 / W
        # book: V (M - 1) / M^2 / W_node for M = 2 nodes of 8, V = 16 s
        ({"x": 16}, "h100", ("x",), 16 * 1 / 4 / 4e11),
        ({"x": 4, "y": 8}, "h100", ("x",), 3 / 4 / 5e10),
    ],
)
def test_all_to_all(
    mesh: dict[str, int], name: str, axes: tuple[str, ...], s_per_byte: float
) -> None:
    assert 1 / rate(mesh, name, "all-to-all", axes) == pytest.approx(s_per_byte)


@pytest.mark.parametrize(
    "mesh, name, axes, s_per_byte",
    [
        ({"x": 16, "y": 16}, "tpu-v5e", ("x",), 1 / 4.5e10),  # a shift uses one direction
        ({"x": 8}, "h100", ("x",), 1 / 4.5e11),
        ({"x": 4, "y": 8}, "h100", ("x",), 1 / 5e10),  # its own NIC
        ({"x": 16}, "h100", ("x",), 1 / 4e11),  # one device of a node crosses, with all its NICs
    ],
)
def test_permute(mesh: dict[str, int], name: str, axes: tuple[str, ...], s_per_byte: float) -> None:
    assert 1 / rate(mesh, name, "collective-permute", axes) == pytest.approx(s_per_byte)


# Published seconds of single collectives; docs/fidelity.md has the same rows. NCCL changes its
# protocol at some sizes, where single rows jump.
@pytest.mark.parametrize(
    "device_name, median, worst",
    [
        ("a100-80", 0.08, 0.27), ("h100", 0.08, 0.27), ("b200", 0.08, 0.27), ("gb200", 0.12, 0.12),
        ("tpu-7x", 0.05, 0.05),
    ],
)  # fmt: skip
def test_published_seconds(device_name: str, median: float, worst: float) -> None:
    rows = [row for row in measured_links.rows() if row.device == device_name]
    errors = [abs(row.predicted_s() / row.seconds - 1) for row in rows]
    assert len(errors) >= 3 and statistics.median(errors) < median and max(errors) < worst


# A full ring through all GPUs (meta-pytorch/autoparallel's table of NCCL): 70 us, 1.2 ms.
@pytest.mark.parametrize("nodes, latency_s", [(2, 70e-6), (32, 1.2e-3)])
def test_latency_grows_with_the_ring(nodes: int, latency_s: float) -> None:
    network = Network({"x": 8 * nodes}, "h100")
    assert network.curve("all-gather", ("x",)).latency_s == pytest.approx(latency_s, rel=0.1)
    tree_s = network.curve("all-reduce", ("x",)).latency_s
    assert tree_s < network.curve("all-gather", ("x",)).latency_s


def test_ironwood_by_its_cores() -> None:
    """JAX shows two devices for each chip."""
    cores = Network({"x": 2, "y": 4}, "tpu-7x-core")
    for row in measured_links.rows():
        if row.device == "tpu-7x":
            seconds = cores.seconds("all-gather", ("x", "y"), row.bytes)
            assert seconds == pytest.approx(row.seconds, rel=0.11)


def test_cores_of_a_chip_are_nearer_than_chips() -> None:
    """jax#39340: core to core about 6 times a link; two cores share the links of their chip."""
    network = Network({"x": 4, "y": 4, "z": 4, "cores": 2}, "tpu-7x-core")
    assert [row.link for row in network.describe()] == [*["ring of 4"] * 3, "2 in chip"]
    slope = {axis: network.curve("all-gather", (axis,)).s_per_byte for axis in network.mesh.names}
    assert slope["cores"] == pytest.approx(1 / 2 / 6e11)
    assert slope["z"] == pytest.approx(3 / 4 / (2 * 4.5e10))
    both = network.curve("all-gather", ("z", "cores"))  # what one core receives the other has too
    chips = Network({"x": 4, "y": 4, "z": 4}, "tpu-7x").curve("all-gather", ("z",))
    assert both.s_per_byte == pytest.approx(chips.s_per_byte) == pytest.approx(3 / 4 / 1.8e11)
    shared = Network({"x": 4, "y": 4, "z": 8}, "tpu-7x-core")
    assert shared.describe()[2].link == "2 in chip + ring of 4"
    exchange = shared.curve("all-to-all", ("z",))  # a quarter of the shards of both passes a link
    assert exchange.s_per_byte == pytest.approx(2 * 4 / 4 / 1.8e11)


def test_small_messages_h100_are_not_absurd() -> None:
    network = Network({"x": 8}, "h100")
    assert network.seconds("all-reduce", ("x",), 8) < 2e-5
    assert network.seconds("all-reduce", ("x",), 1e6) < 1e-4


def test_book_gather_of_half_a_gigabyte() -> None:
    """Book, GPUs, quiz 2: 1.04 ms in theory, about 1.5 ms in practice."""
    seconds = Network({"x": 8}, "h100").seconds("all-gather", ("x",), 4096 * 65536 * 2)
    assert seconds > 1.04e-3 and seconds == pytest.approx(1.5e-3, rel=0.2)


def test_book_gather_on_v5e_reaches_its_peak_early() -> None:
    """Book, Sharding: an axis of 16 reaches about 95 % of the peak with 10 MB."""
    seconds = Network({"x": 16, "y": 16}, "v5e").seconds("all-gather", ("x",), 10e6)
    assert 10e6 * 15 / 16 / seconds / 9e10 == pytest.approx(0.95, abs=0.05)


def test_book_questions_v4() -> None:
    """Book, Sharding, questions 2 and 3: v4 4 x 4 x 4, B = 1024, D = 4096, bf16."""
    network = Network({"x": 4, "y": 4, "z": 4}, book("v4"))
    array = 2 * 1024 * 4096
    one_axis = network.curve("all-gather", ("x",))
    assert array / 4 * one_axis.s_per_byte == pytest.approx(23e-6 * 3 / 4, rel=0.05)
    both = network.curve("all-gather", ("x", "y"))
    assert array * both.s_per_byte == pytest.approx(46e-6 * 15 / 16, rel=0.05)
    assert network.seconds("all-gather", ("x",), 256) == pytest.approx(2e-6, rel=0.01)  # two hops


V5P = Network({"x": 16, "y": 16, "z": 16}, book("tpu-v5p"))
AXES = [("x",), ("x", "y"), ("x", "y", "z")]
C = device("tpu-v5p").matrix_flops_per_s("bf16")


@pytest.mark.parametrize("axes", AXES, ids=len)
def test_fsdp_is_link_bound_below_2550_tokens_per_chip_and_axis(axes: tuple[str, ...]) -> None:
    d, f = 8192, 32768
    gather_s = V5P.seconds("all-gather", axes, 2 * 2 * d * f)  # both weights of an MLP, bf16
    tokens = gather_s * C / (4 * d * f)  # per chip: 2 dots of 2 d f FLOP per token
    assert tokens == pytest.approx(2550 / len(axes), rel=0.07)


@pytest.mark.parametrize("axes, tokens", [(AXES[0], 2550), (AXES[1], 2550), (AXES[2], 1700)])
def test_more_axes_do_not_carry_that_rule_on_libtpu(axes: tuple[str, ...], tokens: float) -> None:
    """It gathers along one ring, two links, or over three dims as a sum: six links, twice."""
    d, f = 8192, 32768
    network = Network(V5P.mesh, "tpu-v5p")
    gather_s = 2 * 2 * d * f * network.curve("all-gather", axes).s_per_byte
    assert gather_s * C / (4 * d * f) == pytest.approx(tokens, rel=0.07)


@pytest.mark.parametrize("axes", AXES, ids=len)
def test_tensor_parallelism_is_link_bound_beyond_axes_f_over_2550(axes: tuple[str, ...]) -> None:
    tokens, d = 2**20, 8192
    activations = 2 * tokens * d  # gathered before the MLP, reduced and scattered after it
    link_s = V5P.seconds("all-gather", axes, activations)
    link_s += V5P.seconds("reduce-scatter", axes, activations)
    # compute is 4 tokens d f / y / C seconds, so links take as long when y is
    y_of_f = 4 * tokens * d / C / link_s
    assert y_of_f == pytest.approx(len(axes) / 2550, rel=0.07)


@pytest.mark.parametrize("tokens, width", [(4096, 8192), (8192, 4096), (4097, 4096), (4095, 4096)])
@pytest.mark.parametrize("name", ["tpu-v5e", "h100"])
def test_sequence_parallel_wins_when_tokens_exceed_the_output_width(
    tokens: int, width: int, name: str
) -> None:
    network, d = Network({"model": 8}, name), 4096
    gather_weights = network.seconds("all-gather", ("model",), 2 * d * width)  # sequence-parallel
    gather_tokens = network.seconds("all-gather", ("model",), 2 * tokens * d)  # column-parallel
    assert (gather_weights < gather_tokens) == (tokens > width)


def test_wraparound_halves() -> None:
    shape = {"x": 16, "y": 16}
    ring = Network(shape, "v5e")
    line = Network(Mesh(shape, wrap={"x": False}), "v5e")
    for kind in ("all-gather", "all-reduce", "reduce-scatter", "all-to-all"):
        slow, fast = line.seconds(kind, ("x",), LARGE), ring.seconds(kind, ("x",), LARGE)
        assert slow == pytest.approx(2 * fast)
    forced = Network(Mesh({"x": 8, "y": 8}, wrap={"x": True}), "v5e")
    assert [row.wrap for row in forced.describe()] == [True, False]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["p100", "v100", "a100", "h100", "b200", "mi300x"])
def test_across_nodes_is_slower(kind: str, name: str) -> None:
    network = Network({"outer": 8, "inner": 8}, name)
    for bytes in (1e3, 1e6, 1e9):
        inside = network.seconds(kind, ("inner",), bytes)
        assert network.seconds(kind, ("outer",), bytes) > inside
        whole = Network({"inner": 8}, name).seconds(kind, ("inner",), bytes)
        assert inside == whole  # the order of axes decides, not their number


def test_dcn_is_slower_and_shared_by_the_slice() -> None:
    mesh = Mesh({"data": 4, "model": 16, "rest": 16}, dcn=("data",))
    network = Network(mesh, "tpu-v5e")
    dcn = device("tpu-v5e").dcn_bytes_per_s
    assert network.curve("all-gather", ("data",)).s_per_byte == pytest.approx(3 / 4 / dcn)
    both = network.curve("all-gather", ("data", "model"))  # 16 hosts' NICs carry it together
    assert both.s_per_byte == pytest.approx(3 / 4 / (16 * dcn))
    assert network.curve("all-gather", ("model",)).s_per_byte == pytest.approx(15 / 16 / 9e10)
    assert network.notes() == []


# W = 2 x 4.5e10 around an axis of 16, w = 3.125e9 over the data-centre network of v5e.
@pytest.mark.parametrize(
    "mesh, name, links, axis, s_per_byte, note",
    [
        # cut: 16 slices x 16 inside; the 16 devices of a slice share what comes from others
        (
            {"data": 256, "model": 16}, "tpu-v5e", ["ring of 16 + 16 DCN", "ring of 16"],
            "data", max(15 / 16 / 9e10, 15 / 16 / (16 * 3.125e9)),
            "4,096 devices are 16 slices of 256 (tpu-v5e): axis `data` crosses",
        ),
        # the minor axis fills a slice: the major one crosses whole
        (
            {"data": 8, "model": 256}, "tpu-v5e", ["8 DCN", "ring of 16 x ring of 16"],
            "data", 7 / 8 / 3.125e9,
            "2,048 devices are 8 slices of 256 (tpu-v5e): axis `data` crosses",
        ),
        # the first axis without room is cut, those before it cross whole
        (
            {"pod": 3, "data": 32, "model": 16}, "tpu-v5e",
            ["3 DCN", "ring of 16 + 2 DCN", "ring of 16"],
            "data", max(15 / 16 / 9e10, 1 / 2 / (16 * 3.125e9)),
            "1,536 devices are 6 slices of 256 (tpu-v5e): axes `pod` and `data` cross",
        ),
        # by count there would be room: 8192 of 16 x 20 x 28 = 8960, but no such slice
        (
            {"data": 512, "model": 16}, "tpu-v5p",
            ["ring of 16 x ring of 16 + 2 DCN", "ring of 16"],
            "data", max(255 / 256 / (2 * 9e10), 1 / 2 / (256 * 6.25e9)),
            "8,192 devices are 2 slices of 4,096 (tpu-v5p): axis `data` crosses",
        ),
        # 2,048 cores are the 1,024 chips of one pod
        ({"data": 64, "model": 32}, "tpu-v3-core", ["ring of 64", "ring of 32"],
         "data", 63 / 64 / (2 * 5e10), None),
    ],
)  # fmt: skip
def test_more_devices_than_a_slice_has_are_several_slices(
    mesh: dict[str, int], name: str, links: list[str], axis: str, s_per_byte: float,
    note: str | None,
) -> None:  # fmt: skip
    network = Network(mesh, name)
    assert [row.link for row in network.describe()] == links
    assert network.curve("all-gather", (axis,)).s_per_byte == pytest.approx(s_per_byte)
    reduced = network.curve("all-reduce", (axis,)).s_per_byte
    assert s_per_byte * (1 - 1e-9) <= reduced <= 2 * s_per_byte * (1 + 1e-9)
    assert network.notes() == ([f"{note} the data-centre network"] if note else [])


def test_dcn_is_respected_and_what_still_has_no_room_is_cut() -> None:
    told = Network(Mesh({"pod": 2, "data": 16, "model": 16}, dcn=("data",)), "tpu-v5e")
    assert [row.link for row in told.describe()] == ["line of 2", "16 DCN", "line of 4 x line of 4"]
    assert told.notes() == []
    more = Network(Mesh({"pod": 2, "data": 32, "model": 16}, dcn=("pod",)), "tpu-v5e")
    assert [row.link for row in more.describe()] == ["2 DCN", "ring of 16 + 2 DCN", "ring of 16"]
    assert more.notes() == [
        "1,024 devices are 4 slices of 256 (tpu-v5e): axis `data` crosses the data-centre network"
    ]


def test_a_slice_that_exists_nowhere_is_said() -> None:
    told = Mesh({"data": 32, "model": 8}, torus=([("data", 32)], [("model", 8)]))
    assert Network(told, "tpu-v5e").notes() == [
        "no slice of tpu-v5e is 32x8, the largest is 16x16: priced as if one were"
    ]
    assert Network({"data": 32, "model": 8}, "tpu-v5e").notes() == []  # on 16 x 16
    assert Network({"data": 256}, "tpu-v5e").notes() == []
    assert Network({"data": 4096}, "h100").notes() == []


def test_given_link() -> None:
    link = Link(bytes_per_s=1e9, latency_s=1e-3)
    network = Network(Mesh({"data": 4, "model": 8}, links={"data": link}), "h100")
    assert network.seconds("all-gather", ("data",), 4e9) == pytest.approx(1e-3 + 3)
    assert network.describe()[0].link == "4 given"


def test_describe() -> None:
    rows = Network({"data": 4, "fsdp": 4, "model": 4}, "h100").describe()
    assert [(row.axis, row.size, row.link) for row in rows] == [
        ("data", 4, "4 across nodes"),
        ("fsdp", 4, "2 in node + 2 across nodes"),
        ("model", 4, "4 in node"),
    ]
    rows = Network({"data": 16, "model": 1}, "tpu-v5e").describe()
    assert [(row.link, row.wrap) for row in rows] == [
        ("line of 4 x line of 4", False),
        ("none", False),
    ]
    assert rows[1].bytes_per_s == math.inf


@pytest.mark.parametrize(
    "kind, axes, text",
    [
        ("all-gathr", ("x",), "unknown collective 'all-gathr'\n  try     all-reduce, all-gather"),
        (
            "all-gather",
            ("y",),
            "all-gather over an unknown mesh axis 'y'\n  mesh    x=4\n  try     x",
        ),
        ("all-gather", ("x", "x"), "all-gather names an axis twice: x, x"),
    ],
)
def test_errors(kind: str, axes: tuple[str, ...], text: str) -> None:
    with pytest.raises(ShardwrightError) as error:
        Network({"x": 4}, "h100").seconds(kind, axes, 1.0)
    assert str(error.value).startswith(text)


TORI = [name for name, known in devices().items() if known.topology == "torus"]
NETWORKS = st.builds(
    lambda name, sizes, dcn: Network(
        Mesh(tuple(zip("abcd", sizes, strict=False)), dcn=("a",) if dcn else ()), name
    ),
    st.sampled_from([*sorted(devices()), *map(book, TORI)]),
    st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=1, max_size=4),
    st.booleans(),
)
BYTES = st.floats(1, 1e12)


@settings(max_examples=200, deadline=None)
@given(NETWORKS, st.sampled_from(KINDS), BYTES, BYTES, st.data())
def test_more_bytes_are_never_faster(
    network: Network, kind: str, one: float, other: float, data: st.DataObject
) -> None:
    axes = tuple(data.draw(st.lists(st.sampled_from(network.mesh.names), unique=True)))
    few, many = sorted((one, other))
    assert 0 <= network.seconds(kind, axes, few) <= network.seconds(kind, axes, many)
    apart = network.seconds(kind, axes, one) + network.seconds(kind, axes, other)
    assert network.seconds(kind, axes, one + other) <= apart * (1 + 1e-9)  # combining never hurts
    assert network.seconds(kind, axes, 0) == 0
    if math.prod(network.mesh.shape[axis] for axis in axes) == 1:
        assert network.seconds(kind, axes, many) == 0


@settings(max_examples=100, deadline=None)
@given(NETWORKS, BYTES)
def test_all_reduce_is_two_halves_or_one_shot(network: Network, bytes: float) -> None:
    for axes in itertools.chain([network.mesh.names], [(name,) for name in network.mesh.names]):
        parts = network.seconds("reduce-scatter", axes, bytes)
        parts += network.seconds("all-gather", axes, bytes)
        members = math.prod(network.mesh.shape[name] for name in axes)
        at_once = network.seconds("all-gather", axes, members * bytes)
        got = network.seconds("all-reduce", axes, bytes)
        if network.device.topology == "torus":
            one_call = max(parts - network.device.latency_s, 0.0)
            assert got <= min(one_call, at_once) * (1 + 1e-9)
            if network.device.gather_links == 0:
                assert got == pytest.approx(min(one_call, at_once))
        else:  # one call instead of two, over a tree, and a switch may add up
            assert got <= parts * (1 + 1e-9)
            slope = network.curve("all-reduce", axes).s_per_byte * network.device.all_reduce_gain
            assert slope >= 2 * network.curve("all-gather", axes).s_per_byte * (1 - 1e-9)


@settings(max_examples=200, deadline=None)
@given(NETWORKS, BYTES, st.data())
def test_one_gather_over_two_axes_beats_one_after_the_other(
    network: Network, bytes: float, data: st.DataObject
) -> None:
    names = network.mesh.names
    if len(names) < 2:
        return
    a, b = data.draw(st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True))
    together = network.seconds("all-gather", (a, b), bytes)
    assert together == network.seconds("all-gather", (b, a), bytes)
    in_turn = network.seconds("all-gather", (a,), bytes / network.mesh.shape[b])
    in_turn += network.seconds("all-gather", (b,), bytes)
    # but for its latency: one ring through all nodes has more steps
    assert together <= in_turn * (1 + 1e-9) + network.curve("all-gather", (a, b)).latency_s
