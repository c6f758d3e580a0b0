"""The least that each kernel and each step must do, counted on paper, and a machine's rates.

Bytes: every input read once and every output written once, whatever a kernel really does. Operations:
for products, multiplications and additions of real pixels (tiles' padding is not needed); for the
rest, roughly how many elementary ones each value takes. h directions, n columns, d pixels, k = C·S²
directions of a tile; values are float32, rotations half precision.
"""

from dataclasses import dataclass

from sliceflow.kernels.geometry import Geometry

__all__ = [
    "Rates",
    "Work",
    "add_class_offsets",
    "at_bends",
    "compose",
    "displace_grid",
    "geometry",
    "histogram",
    "move_tiles",
    "pack",
    "philox",
    "project_tiles",
    "step",
    "through_knots",
]


@dataclass(frozen=True)
class Rates:
    """What a machine reaches: bytes read plus written per second, operations per second of products."""

    copy: float
    half: float  # float16 operands
    tf32: float


@dataclass(frozen=True)
class Work:
    """Bytes that must be moved and operations; `products` tells whether tensor cores can do those."""

    bytes: int
    operations: int
    products: bool = False

    def least_seconds(self, rates: Rates) -> float:
        """No version is faster: the bytes at the copy's rate, or the products at theirs."""
        return max(self.bytes / rates.copy, self.operations / rates.half if self.products else 0.0)

    def share_of_copy(self, seconds: float, rates: Rates) -> float:
        """1 where the bytes went by as fast as in a copy."""
        return self.bytes / seconds / rates.copy

    def share_of_products(self, seconds: float, rates: Rates) -> float | None:
        """1 where the products were as fast as one large product in half precision."""
        return self.operations / seconds / rates.half if self.products else None


def geometry(shape: tuple[int, int, int], patch: int) -> Geometry:
    """Tiles as a step cuts them on average: moved by half a tile, where there is room to move."""
    _, h, w = shape
    s, t = min(patch, h), min(patch, w)
    return Geometry(shape, (s, t), (s // 2 if s < h else 0, t // 2 if t < w else 0))


def histogram(h: int, n: int, bins: int) -> Work:
    """z in; counts, lo and hi out. Two comparisons for the range, six operations to find the bin."""
    return Work(4 * h * (n + bins + 2), 8 * h * n)


def compose(h: int, bins: int) -> Work:
    """Both counts and ranges in; the table and the cost out. Each edge is searched for twice."""
    search = 2 * 3 * bins.bit_length()
    return Work(4 * h * (2 * bins + 4 + bins + 1 + 1), h * (bins + 1) * (search + 20))


def pack(h: int, bins: int) -> Work:
    """A table and its range in; a word per bin and four numbers out."""
    return Work(4 * h * (bins + 3 + bins + 4), 8 * h * bins)


def at_bends(h: int, bins: int, knots: int) -> Work:
    """A table, its range and its counts in; knots of 6 bytes and a range of 16 out."""
    return Work(h * (4 * (2 * bins + 3) + 6 * knots + 16), 60 * h * bins)


def through_knots(h: int, bins: int, knots: int) -> Work:
    """Knots of 6 bytes and a range of 16 in; the table out."""
    return Work(h * (6 * knots + 16 + 4 * (bins + 1)), 8 * h * bins)


def add_class_offsets(h: int, n: int, classes: int) -> Work:
    """z, an offset per class and direction, and class numbers of 8 bytes in; z out."""
    return Work(8 * h * n + 4 * h * classes + 8 * n, h * n)


def displace_grid(h: int, n: int, bins: int) -> Work:
    """z and the table in; T(z) - z out."""
    return Work(8 * h * n + 4 * h * (bins + 3), 12 * h * n)


def philox(n: int) -> Work:
    """Four words of 8 bytes out for each counter; ten rounds of two wide products."""
    return Work(32 * n, 100 * n)


def _sizes(cut: Geometry) -> tuple[int, int, int]:
    """d, k and h."""
    c, height, width = cut.shape
    return c * height * width, cut.side, cut.n_directions


def project_tiles(cut: Geometry, n: int) -> Work:
    """x and the rotation in; z out. A pixel is in one tile and meets its k directions."""
    d, k, h = _sizes(cut)
    return Work(4 * d * n + 2 * k * k + 4 * h * n, 2 * k * d * n, True)


def move_tiles(cut: Geometry, n: int, bins: int, classes: int = 0) -> Work:
    """x, the rotation and the table in; x out. Project, and lift back: two products."""
    d, k, h = _sizes(cut)
    labels = 4 * h * classes + 8 * n if classes else 0
    return Work(8 * d * n + 2 * k * k + 4 * h * (bins + 3) + labels, 4 * k * d * n, True)


def step(cut: Geometry, m: int, looked_p: int, looked_q: int, bins: int) -> Work:
    """A whole step of m particles that looks at some particles and data.

    x of those in, to count without writing z; tables out and in; x of all in and out, to move.
    """
    d, k, h = _sizes(cut)
    looked = looked_p + looked_q
    return Work(
        4 * d * looked + 8 * d * m + 8 * h * (bins + 3) + 4 * k * k,
        2 * k * d * looked + 4 * k * d * m,
        True,
    )
