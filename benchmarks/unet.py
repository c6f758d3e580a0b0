"""A small network beside the flow: samples after the same time, on the same machine.

    python benchmarks/unet.py cifar10 --data-root DATA --device cuda --fid-weights NPZ
    python benchmarks/unet.py digits --width 16 --seconds 5 10 --steps-per-stage 10

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
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judge import Judge, load_split
from report import (
    Row,
    add_device_argument,
    command_line,
    script_parser,
    table_of_rows,
    write_report,
)
from torch import Tensor, nn
from torch.nn import functional

from sliceflow import ImageFlow, ImageOptions
from sliceflow.datasets import PictureSet
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

# Usual settings for flow matching with a small U-Net; none of them was tuned.
LEARNING_RATE = 4e-4
WARMUP_STEPS = 200
WEIGHT_DECAY = 0.01
BETAS = (0.9, 0.99)
MAX_GRADIENT_NORM = 1.0
MAX_AVERAGE_DECAY = 0.999  # of the exponential average of the weights
MAX_GROUPS = 32  # of group norm
CHANNELS_PER_HEAD = 64  # of attention
TIME_SCALE = 1000  # of t in [0, 1], before its sines and cosines
SLOWEST_TIME_RATE = 1e-4
SAMPLE_BATCH = 1000
# The clock is read after so many steps, as the GPU must have done its work.
STEPS_PER_WAIT = 10


# --- the network ----------------------------------------------------------------------


def group_norm(channels: int) -> nn.GroupNorm:
    """At most 32 groups of equally many channels."""
    return nn.GroupNorm(math.gcd(MAX_GROUPS, channels), channels)


def conv3(n_inputs: int, n_outputs: int) -> nn.Conv2d:
    """A 3 × 3 convolution that keeps the picture's size."""
    return nn.Conv2d(n_inputs, n_outputs, 3, padding=1)


class Block(nn.Module):
    """Two convolutions around a shift by the time, added to its input."""

    def __init__(self, n_inputs: int, n_outputs: int, n_times: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            group_norm(n_inputs), nn.SiLU(), conv3(n_inputs, n_outputs)
        )
        self.shift = nn.Linear(n_times, n_outputs)
        self.second = nn.Sequential(
            group_norm(n_outputs), nn.SiLU(), conv3(n_outputs, n_outputs)
        )
        self.skip: nn.Module = nn.Identity()
        if n_inputs != n_outputs:
            self.skip = nn.Conv2d(n_inputs, n_outputs, 1)
        nn.init.zeros_(self.second[-1].weight)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(x) + self.shift(time)[:, :, None, None]
        return self.skip(x) + self.second(y)


class Attention(nn.Module):
    """Self-attention between all positions, added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.n_heads = max(1, channels // CHANNELS_PER_HEAD)
        self.project = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        projected = self.project(self.norm(x))
        heads = projected.view(n, 3, self.n_heads, c // self.n_heads, h * w)
        query, key, value = heads.transpose(3, 4).unbind(1)
        y = functional.scaled_dot_product_attention(query, key, value)
        return x + self.out(y.transpose(2, 3).reshape(n, c, h, w))


class UNet(nn.Module):
    """The velocity of pictures at times: three resolutions, two blocks at each.

    There are two on the way down and two on the way up, which also see the outputs of
    those on the way down.
    """

    def __init__(self, n_channels: int, width: int) -> None:
        super().__init__()
        self.width = width
        n_times = 4 * width
        level_channels = (width, 2 * width, 2 * width)
        self.time = nn.Sequential(
            nn.Linear(width, n_times), nn.SiLU(), nn.Linear(n_times, n_times), nn.SiLU()
        )
        self.into = conv3(n_channels, width)
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        skip_channels = [width]
        current = width
        for channels in level_channels:
            first = Block(current, channels, n_times)
            second = Block(channels, channels, n_times)
            self.down.append(nn.ModuleList([first, second]))
            skip_channels += [channels, channels]
            current = channels
        self.middle = nn.ModuleList(
            [
                Block(current, current, n_times),
                Attention(current),
                Block(current, current, n_times),
            ]
        )
        for channels in reversed(level_channels):
            first = Block(current + skip_channels.pop(), channels, n_times)
            second = Block(channels + skip_channels.pop(), channels, n_times)
            self.up.append(nn.ModuleList([first, second]))
            current = channels
        self.out = nn.Sequential(
            group_norm(current), nn.SiLU(), conv3(current, n_channels)
        )
        nn.init.zeros_(self.out[-1].weight)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time = self.time(self._time_waves(t))
        skips = []
        sizes = []
        x = self.into(x)
        for level, blocks in enumerate(self.down):
            sizes.append(x.shape[2:])
            if level > 0:
                x = functional.avg_pool2d(x, 2, ceil_mode=True)
            for block in blocks:
                x = block(x, time)
                skips.append(x)
        first, attention, last = self.middle
        x = last(attention(first(x, time)), time)
        for level, blocks in zip(reversed(range(len(self.up))), self.up, strict=True):
            for block in blocks:
                x = block(torch.cat((x, skips.pop()), 1), time)
            if level > 0:
                x = functional.interpolate(x, size=sizes[level], mode="nearest")
        return self.out(x)

    def _time_waves(self, t: Tensor) -> Tensor:
        """(n, width) cosines and sines of times (n,), fast ones and slow ones."""
        n_rates = self.width // 2
        exponent = torch.arange(n_rates, device=t.device) / n_rates
        rates = torch.exp(math.log(SLOWEST_TIME_RATE) * exponent)
        angles = TIME_SCALE * t[:, None] * rates
        return torch.cat((angles.cos(), angles.sin()), 1)


# --- training and sampling ------------------------------------------------------------


class Trainer:
    """A network in training, and the average of its weights."""

    def __init__(
        self,
        train: PictureSet,
        mirror: bool,
        width: int,
        batch_size: int,
        device: torch.device,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        images = torch.from_numpy(train.images)
        if images.ndim == 3:
            images = images[:, None]
        else:
            images = images.permute(0, 3, 1, 2)
        self.images = images.contiguous().to(device)  # (n, c, h, w)
        self.n_pixel_values = train.n_pixel_values
        self.mirror = mirror
        self.batch_size = batch_size
        self.device = device
        self.network = UNet(images.shape[1], width).to(device)
        self.average = UNet(images.shape[1], width).to(device).requires_grad_(False)
        self.average.load_state_dict(self.network.state_dict())
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(),
            LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            betas=BETAS,
        )
        self.loss: Callable[..., Tensor] = self._loss
        self.velocity: Callable[..., Tensor] = self.average
        if device.type == "cuda":
            self.loss = torch.compile(self._loss)
            self.velocity = torch.compile(self.average)
        self.n_steps = 0

    @property
    def n_parameters(self) -> int:
        """The number of weights."""
        return sum(weights.numel() for weights in self.network.parameters())

    def _autocast(self) -> torch.autocast:
        """bfloat16 on a GPU."""
        on_gpu = self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on_gpu)

    def _loss(self, x: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Mean squared error of the velocity at x_t."""
        weight = t[:, None, None, None]
        velocity = self.network((1 - weight) * noise + weight * x, t)
        return (velocity.float() - (x - noise)).square().mean()

    def _batch(self) -> Tensor:
        """Random pictures in [-1, 1], with noise between pixel values."""
        rows = torch.randint(len(self.images), (self.batch_size,), device=self.device)
        x = self.images[rows].float()
        x = (x + torch.rand_like(x)) * (2 / self.n_pixel_values) - 1
        if self.mirror:
            flipped = torch.rand(self.batch_size, 1, 1, 1, device=self.device) < 0.5
            x = torch.where(flipped, x.flip(3), x)
        return x

    def step(self) -> None:
        """Learn one batch."""
        x = self._batch()
        t = torch.sigmoid(torch.randn(self.batch_size, device=self.device))
        warmup = min(1, (self.n_steps + 1) / WARMUP_STEPS)
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * warmup
        with self._autocast():
            loss = self.loss(x, torch.randn_like(x), t)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.n_steps += 1
        self._update_average()

    def _update_average(self) -> None:
        """Move the average a little towards the weights; more in the beginning."""
        decay = min(MAX_AVERAGE_DECAY, (1 + self.n_steps) / (10 + self.n_steps))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.average.parameters()),
                list(self.network.parameters()),
                1 - decay,
            )

    def train(self, seconds: float) -> None:
        """Learn batches for so many seconds."""
        stop_at = time.perf_counter() + seconds
        while time.perf_counter() < stop_at:
            self.step()
            if self.n_steps % STEPS_PER_WAIT == 0:
                wait(self.device)

    @torch.no_grad()
    def sample(self, n: int, n_steps: int) -> np.ndarray:
        """n pictures (n, h, w[, c]), by Heun's method."""
        batches = []
        for start in range(0, n, SAMPLE_BATCH):
            shape = (min(SAMPLE_BATCH, n - start), *self.images.shape[1:])
            x = self._heun(torch.randn(shape, device=self.device), n_steps)
            pixels = ((x + 1) * (self.n_pixel_values / 2)).floor()
            pixels = pixels.clamp(0, self.n_pixel_values - 1).to(torch.uint8)
            batches.append(pixels.permute(0, 2, 3, 1).cpu().numpy())
        images = np.concatenate(batches)
        if images.shape[3] == 1:
            return images[..., 0]
        return images

    def _heun(self, x: Tensor, n_steps: int) -> Tensor:
        """Noise moved along the velocity from t = 0 to 1."""
        times = torch.linspace(0, 1, n_steps + 1).tolist()
        for t, t_next in pairwise(times):
            dt = t_next - t
            with self._autocast():
                v = self.velocity(x, x.new_full((len(x),), t)).float()
                x_ahead = x + dt * v
                t_ahead = x.new_full((len(x),), t_next)
                v = (v + self.velocity(x_ahead, t_ahead).float()) / 2
            x = x + dt * v
        return x


def wait(device: torch.device) -> None:
    """Until the device has done all that was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize()


# --- models ---------------------------------------------------------------------------
# Both give the beginning of a row, and samples, for every setting in turn.


def run_flows(
    args: argparse.Namespace, train: PictureSet, mirror: bool, device: torch.device
) -> Iterator[tuple[Row, np.ndarray]]:
    """Samples of the flow without labels, by steps per stage."""
    settings: dict[str, Any] = {
        "n_pixel_values": train.n_pixel_values,
        "mirror": mirror,
        "n_particles": max(args.samples, min(len(train.images), 50_000)),
        "options": ImageOptions(n_knots=0),
        "device": str(device),
        "random_state": args.seed,
    }
    started_at = time.perf_counter()
    ImageFlow(steps_per_stage=1, **settings).fit(train.images)  # compiles
    compiling = time.perf_counter() - started_at
    for n_steps in sorted(args.steps_per_stage):
        started_at = time.perf_counter()
        flow = ImageFlow(steps_per_stage=n_steps, **settings).fit(train.images)
        row = {
            "model": f"sliceflow, {flow.plan_.method}, {n_steps} steps per stage",
            "training s": time.perf_counter() - started_at,
            "compiling s": compiling,
            "sampling s": 0.0,
        }
        yield row, flow.particles_[: args.samples]


def run_networks(
    args: argparse.Namespace, train: PictureSet, mirror: bool, device: torch.device
) -> Iterator[tuple[Row, np.ndarray]]:
    """Samples of the network after each time."""
    started_at = time.perf_counter()
    trainer = Trainer(train, mirror, args.width, args.batch, device, args.seed)
    trainer.step()  # compiles
    trainer.sample(min(SAMPLE_BATCH, args.samples), 1)
    wait(device)
    compiling = time.perf_counter() - started_at
    seconds_done = 0.0
    for seconds in sorted(args.seconds):
        trainer.train(seconds - seconds_done)
        seconds_done = seconds
        started_at = time.perf_counter()
        images = trainer.sample(args.samples, args.heun)
        size = f"{trainer.n_parameters / 1e6:.1f} M parameters"
        row = {
            "model": f"U-Net, {size}, {trainer.n_steps:,} steps",
            "training s": seconds,
            "compiling s": compiling,
            "sampling s": time.perf_counter() - started_at,
        }
        yield row, images


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = script_parser(__doc__)
    parser.add_argument("name", choices=SETS)
    parser.add_argument(
        "--data-root", type=Path, help="folder of the sets; else SLICEFLOW_DATA"
    )
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=[15, 60, 180], help="of training"
    )
    parser.add_argument(
        "--steps-per-stage",
        type=int,
        nargs="+",
        default=[3, 8, 25],
        help="of the flows",
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
    add_device_argument(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/unet"))
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Train, fit, score, write."""
    args = parse_arguments(arguments)
    device = resolve_device(args.device)
    command = command_line("benchmarks/unet.py", arguments)
    train, test = load_split(args.name, args.data_root, args.rows)
    mirror = train.images.ndim == 4
    judge = Judge(
        train,
        test,
        str(device),
        cache=args.out.parent / "networks",
        fid_weights=args.fid_weights,
        mirror=mirror,
        epochs=args.epochs,
    )
    rows: list[Row] = []
    for run in (run_flows, run_networks):
        for row, images in run(args, train, mirror, device):
            rows.append(row | judge.score(images))
            text = f"{table_of_rows(HEADER, rows)}\n\n{judge}"
            write_report(args.out, text, rows, device, command)
    return rows


if __name__ == "__main__":
    main()
