"""A small network beside the flow: samples after the same time, on the same machine, in
one run.

    python benchmarks/unet.py cifar10 --data-root DATA --device cuda --fid-weights FILE.npz
    python benchmarks/unet.py digits --width 16 --seconds 5 10 --quality 10

The network is a U-Net with self-attention at a quarter of the resolution, trained by
flow matching (Lipman et al. 2023): x_t = (1 − t)·noise + t·picture, and the network
learns picture − noise. It sees mirror images if the flow does, is trained in bfloat16
on a GPU with AdamW, and sampled with Heun's method from an exponential average of its
weights. It has about 18 million parameters at --width 128. Training goes on from one
time to the next; the seconds are those of training, without compiling and sampling,
which have columns of their own. The flow's seconds are those of `fit`, with samples.

Writes a table and its numbers after every row.
"""

import argparse
import math
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judge import Judge, load_split
from report import keep, number, table
from torch import Tensor, nn
from torch.nn import functional

from sliceflow import ImageFlow, PictureOptions
from sliceflow.datasets import Pictures
from sliceflow.devices import resolve_device

SETS = ("digits", "mnist", "fashion-mnist", "cifar10")
HEADER = (
    "model",
    "training s",
    "compiling s",
    "sampling s",
    "FD",
    "FD floor",
    "FID-768",
    "NN ratio",
    "copies",
)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(32, channels), channels)


class Block(nn.Module):
    """Two convolutions around a shift by the time, added to its input."""

    def __init__(self, channels: int, out: int, times: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            _norm(channels), nn.SiLU(), nn.Conv2d(channels, out, 3, padding=1)
        )
        self.shift = nn.Linear(times, out)
        self.second = nn.Sequential(
            _norm(out), nn.SiLU(), nn.Conv2d(out, out, 3, padding=1)
        )
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()
        nn.init.zeros_(self.second[-1].weight)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(x) + self.shift(time)[:, :, None, None]
        return self.skip(x) + self.second(y)


class Attention(nn.Module):
    """Self-attention between all positions, added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.heads = max(1, channels // 64)
        self.ask = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        asked = self.ask(self.norm(x)).view(n, 3, self.heads, c // self.heads, h * w)
        y = functional.scaled_dot_product_attention(*asked.transpose(3, 4).unbind(1))
        return x + self.out(y.transpose(2, 3).reshape(n, c, h, w))


class UNet(nn.Module):
    """The velocity of a picture at a time: three resolutions, two blocks at each on
    either side.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.width = width
        times = 4 * width
        sizes = (width, 2 * width, 2 * width)
        self.time = nn.Sequential(
            nn.Linear(width, times), nn.SiLU(), nn.Linear(times, times), nn.SiLU()
        )
        self.into = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        kept = [width]
        at = width
        for size in sizes:
            self.down.append(
                nn.ModuleList([Block(at, size, times), Block(size, size, times)])
            )
            kept += [size, size]
            at = size
        self.middle = nn.ModuleList(
            [Block(at, at, times), Attention(at), Block(at, at, times)]
        )
        for size in reversed(sizes):
            inputs = [at + kept.pop(), size + kept.pop()]
            self.up.append(nn.ModuleList([Block(i, size, times) for i in inputs]))
            at = size
        self.out = nn.Sequential(
            _norm(at), nn.SiLU(), nn.Conv2d(at, channels, 3, padding=1)
        )
        nn.init.zeros_(self.out[-1].weight)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rates = torch.exp(
            -math.log(1e4)
            * torch.arange(self.width // 2, device=x.device)
            / (self.width // 2)
        )
        angles = 1000 * t[:, None] * rates
        time = self.time(torch.cat((angles.cos(), angles.sin()), 1))
        kept = []
        sizes = []
        x = self.into(x)
        for level, blocks in enumerate(self.down):
            sizes.append(x.shape[2:])
            if level:
                x = functional.avg_pool2d(x, 2, ceil_mode=True)
            for block in blocks:
                x = block(x, time)
                kept.append(x)
        first, attention, last = self.middle
        x = last(attention(first(x, time)), time)
        for level, blocks in reversed(list(enumerate(reversed(self.up)))):
            for block in blocks:
                x = block(torch.cat((x, kept.pop()), 1), time)
            if level:
                x = functional.interpolate(x, size=sizes[level], mode="nearest")
        return self.out(x)


class Trained:
    """A network in training, and the average of its weights."""

    def __init__(
        self,
        train: Pictures,
        mirror: bool,
        width: int,
        batch: int,
        device: torch.device,
        seed: int,
        rate: float = 4e-4,
        warm: int = 200,
    ) -> None:
        torch.manual_seed(seed)
        images = torch.from_numpy(train.images)
        images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
        self.images = images.contiguous().to(device)
        self.n_pixel_values = train.n_pixel_values
        self.mirror = mirror
        self.batch = batch
        self.device = device
        self.rate = rate
        self.warm = warm
        self.net = UNet(images.shape[1], width).to(device)
        self.average = UNet(images.shape[1], width).to(device).requires_grad_(False)
        self.average.load_state_dict(self.net.state_dict())
        self.optimizer = torch.optim.AdamW(
            self.net.parameters(), rate, weight_decay=0.01, betas=(0.9, 0.99)
        )
        self.loss: Any = (
            torch.compile(self._loss) if device.type == "cuda" else self._loss
        )
        self.velocity: Any = (
            torch.compile(self.average) if device.type == "cuda" else self.average
        )
        self.steps = 0

    @property
    def n_parameters(self) -> int:
        return sum(p.numel() for p in self.net.parameters())

    def _autocast(self) -> Any:
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"
        )

    def _loss(self, x: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        share = t[:, None, None, None]
        found = self.net((1 - share) * noise + share * x, t)
        return (found.float() - (x - noise)).square().mean()

    def step(self) -> None:
        """One batch."""
        some = torch.randint(len(self.images), (self.batch,), device=self.device)
        x = self.images[some].float()
        x = (x + torch.rand_like(x)) * (2 / self.n_pixel_values) - 1
        if self.mirror:
            flipped = torch.rand(self.batch, 1, 1, 1, device=self.device) < 0.5
            x = torch.where(flipped, x.flip(3), x)
        t = torch.sigmoid(torch.randn(self.batch, device=self.device))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1, (self.steps + 1) / self.warm)
        with self._autocast():
            loss = self.loss(x, torch.randn_like(x), t)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1
        keep_old = min(0.999, (1 + self.steps) / (10 + self.steps))
        with torch.no_grad():
            pairs = list(
                zip(self.average.parameters(), self.net.parameters(), strict=True)
            )
            torch._foreach_lerp_(
                [a for a, _ in pairs], [p for _, p in pairs], 1 - keep_old
            )

    def train(self, seconds: float) -> None:
        """Batches for so many seconds."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.step()
            if self.steps % 10 == 0:
                _wait(self.device)

    @torch.no_grad()
    def sample(self, n: int, n_steps: int) -> np.ndarray:
        """n pictures, by Heun's method."""
        out = []
        for first in range(0, n, 1000):
            x = torch.randn(
                min(1000, n - first), *self.images.shape[1:], device=self.device
            )
            times = torch.linspace(0, 1, n_steps + 1).tolist()
            for t, after in pairwise(times):
                with self._autocast():
                    v = self.velocity(x, x.new_full((len(x),), t)).float()
                    ahead = x + (after - t) * v
                    v = (
                        v + self.velocity(ahead, x.new_full((len(x),), after)).float()
                    ) / 2
                x = x + (after - t) * v
            values = (
                ((x + 1) * (self.n_pixel_values / 2))
                .floor()
                .clamp(0, self.n_pixel_values - 1)
            )
            out.append(values.to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy())
        images = np.concatenate(out)
        return images[..., 0] if images.shape[3] == 1 else images


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def networks(
    args: argparse.Namespace, train: Pictures, mirror: bool, device: torch.device
) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Samples of the network after each time."""
    began = time.perf_counter()
    model = Trained(train, mirror, args.width, args.batch, device, args.seed)
    model.step()  # compiles
    model.sample(min(1000, args.samples), 1)
    _wait(device)
    compiling = time.perf_counter() - began
    done = 0.0
    for seconds in sorted(args.seconds):
        model.train(seconds - done)
        done = seconds
        began = time.perf_counter()
        images = model.sample(args.samples, args.heun)
        about = {
            "model": f"U-Net, {model.n_parameters / 1e6:.1f} M parameters, {model.steps:,} steps"
        }
        about |= {"training s": seconds, "compiling s": compiling}
        yield about | {"sampling s": time.perf_counter() - began}, images


def flows(
    args: argparse.Namespace, train: Pictures, mirror: bool, device: torch.device
) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Samples of the flow without labels, by steps per stage."""
    settings: dict[str, Any] = {
        "n_pixel_values": train.n_pixel_values,
        "mirror": mirror,
        "n_particles": max(args.samples, min(len(train.images), 50_000)),
        "options": PictureOptions(n_knots=0),
        "device": str(device),
        "random_state": args.seed,
    }
    began = time.perf_counter()
    ImageFlow(quality=1, **settings).fit(train.images)  # compiles
    compiling = time.perf_counter() - began
    for quality in sorted(args.quality):
        began = time.perf_counter()
        flow = ImageFlow(quality=quality, **settings).fit(train.images)
        seconds = time.perf_counter() - began
        name = f"sliceflow, {flow.plan_.method}, {quality} steps per stage"
        about = {
            "model": name,
            "training s": seconds,
            "compiling s": compiling,
            "sampling s": 0.0,
        }
        yield about, flow.particles_[: args.samples]


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Train, fit, score, write."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name", choices=SETS)
    parser.add_argument(
        "--data-root", type=Path, help="folder of the sets; else SLICEFLOW_DATA"
    )
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[15, 60, 180], help="of training"
    )
    parser.add_argument(
        "--quality", type=int, nargs="+", default=[3, 8, 25], help="steps per stage"
    )
    parser.add_argument(
        "--width", type=int, default=128, help="channels of the network's first level"
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--heun", type=int, default=32, help="steps of sampling")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--rows", type=int, help="of the training set; default: all")
    parser.add_argument(
        "--fid-weights", type=Path, help="the FID network's file: also give FID-768"
    )
    parser.add_argument(
        "--epochs", type=int, help="of the network that FD is measured with"
    )
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: a GPU if there is one"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/unet"))
    args = parser.parse_args(arguments)
    args.device = str(resolve_device(args.device))
    device = torch.device(args.device)
    train, test = load_split(args.name, args.data_root, args.rows)
    options = {"mirror": train.images.ndim == 4, "fid_weights": args.fid_weights}
    judge = Judge(
        train,
        test,
        args.device,
        cache=args.out.parent / "networks",
        epochs=args.epochs,
        **options,
    )
    rows: list[dict[str, Any]] = []
    command = shlex.join(["python", "benchmarks/unet.py", *arguments])
    for models in (flows, networks):
        for about, images in models(args, train, judge.mirror, device):
            rows.append({**about, **judge.score(images)})
            cells = [[number(row.get(key)) for key in HEADER] for row in rows]
            keep(args.out, f"{table(HEADER, cells)}\n\n{judge}", rows, device, command)
    return rows


if __name__ == "__main__":
    main()
