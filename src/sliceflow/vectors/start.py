"""What a fit starts from: particles, data, and the flow that is to move the ones onto the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import projection_budget
from sliceflow.engine import conditions
from sliceflow.engine.batches import MiniBatches
from sliceflow.engine.conditions import default_particles
from sliceflow.engine.flow import Cloud, Flow, Noise
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import Transport
from sliceflow.errors import need
from sliceflow.ranks import Place, Ranks, shared_transport, weighted_batches
from sliceflow.vectors.data import Rows
from sliceflow.vectors.memory import check_memory
from sliceflow.vectors.parameters import transport_of

if TYPE_CHECKING:
    from sliceflow.vectors.estimator import SlicedWassersteinFlow

_KNOTS_OF_A_CLASS = 32  # knots that the smallest class should have of a map that it shares with others,
_MOST_KNOTS = 4096  # unless that would take more

__all__ = ["Start", "begin", "cloud", "count_particles"]


@dataclass(frozen=True)
class Start:
    """What a fit starts from.

    Parameters
    ----------
    particles : this rank's, standing where they start
    data : this rank's
    noise : the particles' own
    flow : which the model is replayed with
    shared : the same flow, with transports between the clouds of all ranks
    transport : of stages that have none of their own
    batches : what steps look at; None lets `simulate` divide the clouds
    share : which of all particles are this rank's
    codes : conditions of all ranks' particles, encoded; None where the flow sees none
    n_knots : that are kept of each map before the axis steps
    kept : which of those that the user asked for this rank gives back: the fit may have more
    y : conditions of those as the user wrote them, or None
    kept_codes : the same of all ranks, encoded
    order : of the user's particles, in which those of all ranks stand, the further ones having the last
        numbers; None where they stand in that order
    """

    particles: Cloud
    data: Cloud
    noise: Noise
    flow: Flow
    shared: Flow
    transport: Transport
    batches: MiniBatches | None
    share: Place
    codes: Tensor | None
    n_knots: int
    kept: Place
    y: np.ndarray | None
    kept_codes: Tensor | None
    order: Tensor | None

    def in_users_order(self, ranks: Ranks) -> Tensor:
        """x (d, n) of this rank's share of the particles that are kept, as `y` is ordered."""
        x = self.particles.x
        if self.order is None and self.kept == self.share:
            return x
        place = torch.arange(self.share.total) if self.order is None else torch.argsort(self.order)
        return ranks.pick(x, place[self.kept.slice].to(x.device))


def begin(
    estimator: SlicedWassersteinFlow,
    rows: Rows,
    particle_conditions: Any,
    seed: Seed,
    device: torch.device,
    ranks: Ranks | None,
) -> Start:
    """Everything that is simulated; a fit that cannot fit into memory is refused.

    With `ranks`, even with one, every step looks at everything.
    """
    together, x, place = ranks or Ranks(), rows.x, rows.place
    m = count_particles(estimator.n_particles, place.total, rows.condition, particle_conditions)
    kept = together.share(m)
    need(m >= together.size, "n_particles", m, f"at least {together.size}, one per rank")
    transport = transport_of(estimator.transport)
    width = 0 if rows.condition is None else rows.condition.width
    check_memory(estimator, x, kept.count, m + place.total, transport, device, width)
    seen = estimator.amplifier > 0
    y_p, codes_p, order = _conditions(rows, m, particle_conditions, seen, seed.child("conditions"))
    m = max(m, conditions.ENOUGH) if codes_p is None else len(codes_p)
    share = together.share(m)
    n_knots = count_knots(estimator._options.n_knots, codes_p if seen else None)
    if share != kept or n_knots != estimator._options.n_knots:
        check_memory(estimator, x, share.count, m + place.total, transport, device, width, n_knots)

    data = cloud(x, None if rows.codes is None else rows.codes[place.slice], device)
    noise = Noise(seed.child("particles"), share.first)
    own_codes = None if codes_p is None else codes_p[share.slice]
    particles = cloud(x.new_empty(share.count, x.shape[1]), own_codes, device)
    noise.child("start").fill(particles.x)
    flow = Flow(
        estimator.stages(),
        seed.child("flow"),
        width,
        float(estimator.amplifier),
        float(estimator.entropy),
        projection_budget(device),
    )
    shared, (batches, left_out) = flow, looked_at(flow, rows, codes_p, ranks, device)
    if ranks is not None:  # all ranks have the same maps
        shared, transport = _shared(flow, transport, ranks, m + place.total - left_out)
    own_y = None if y_p is None else y_p[kept.slice]
    codes = None
    if codes_p is not None:
        codes = (codes_p if order is None else codes_p[torch.argsort(order)])[: kept.total]
    return Start(
        particles,
        data,
        noise,
        flow,
        shared,
        transport,
        batches,
        share,
        codes_p if flow.conditional else None,
        n_knots,
        kept,
        own_y,
        codes,
        order,
    )


def looked_at(
    flow: Flow, rows: Rows, codes_p: Tensor | None, ranks: Ranks | None, device: torch.device
) -> tuple[MiniBatches | None, int]:
    """What steps look at, of several ranks everything, and how many data that leaves out.

    None lets `simulate` divide the clouds.
    """
    if ranks is None:
        return None, 0
    pair = (rows.codes, codes_p) if flow.conditional else (None, None)
    first = rows.place.first
    return weighted_batches(*pair, torch.arange(first, first + rows.place.count), device)


def count_particles(
    n_particles: int | None,
    n: int,
    condition: conditions.Condition | None,
    particle_conditions: np.ndarray | None = None,
) -> int:
    """M: as many as the user says, or as they have conditions, or enough for n rows."""
    if particle_conditions is not None:
        if condition is None:
            raise ValueError("particle_conditions was given without y; pass y as well")
        m = len(particle_conditions)
        if n_particles not in (None, m):
            raise ValueError(
                f"particle_conditions has {m} rows but n_particles={n_particles}; "
                "make them equal or leave n_particles=None"
            )
    elif n_particles is not None:
        m = int(n_particles)
    else:
        m = default_particles(n)
    if isinstance(condition, conditions.Labels) and m < condition.width:
        raise ValueError(
            f"n_particles={m} is fewer than the {condition.width} classes of y; "
            f"pass n_particles >= {condition.width}"
        )
    return m


def count_knots(n_knots: int, codes: Tensor | None) -> int:
    """How many knots to keep of each map: more than asked for, where a rare class would get few.

    Examples
    --------
    >>> count_knots(512, None), count_knots(512, torch.tensor([0] * 9_900 + [1] * 100))
    (512, 3200)
    """
    if codes is None or codes.dim() != 1:
        return n_knots
    sizes = torch.bincount(codes)
    wanted = _KNOTS_OF_A_CLASS * len(codes) // int(sizes[sizes > 0].min())
    return max(n_knots, min(wanted, _MOST_KNOTS))


def cloud(x: Tensor, codes: Tensor | None, device: torch.device) -> Cloud:
    """Rows (n, d) and codes, as the engine stores them: columns, on its device."""
    return Cloud(x.to(device).T.contiguous(), None if codes is None else codes.to(device))


def _conditions(
    rows: Rows, m: int, y_p: np.ndarray | None, seen: bool, seed: Seed
) -> tuple[np.ndarray | None, Tensor | None, Tensor | None]:
    """The y of the particles asked for, the codes of all that are fitted, and the order of these.

    Conditions that are not `seen` by the flow change nothing of it.
    """
    if rows.condition is None or rows.codes is None or rows.y is None:
        return None, None, None
    given = y_p is not None
    if y_p is not None:
        codes = rows.condition.encode(y_p)
        if codes.dim() == 1 and bool((lost := ~torch.isin(codes, rows.codes)).any()):
            label = conditions.format_label(y_p[lost.numpy()][0])
            raise ValueError(
                f"particle_conditions has {label}, but early_stopping holds out all its rows; give "
                "more of them or set early_stopping=False"
            )
    else:
        numbers = conditions.proportional(rows.codes, m, seed, least=1)
        y_p, codes = rows.y[numbers.numpy()], rows.codes[numbers]
    if not seen:
        further = conditions.even_rows(m, max(m, conditions.ENOUGH) - m, seed)
        return y_p, torch.cat((codes, codes[further])), None
    more = conditions.extra_codes(rows.codes, codes, False, seed.child("further"))
    if not given and len(more) == 0:
        return y_p, codes, None
    order = seed.permutation(m + len(more))  # the flow wants them in random order
    return y_p, torch.cat((codes, more))[order], order


def _shared(flow: Flow, transport: Transport, ranks: Ranks, n: int) -> tuple[Flow, Transport]:
    """The flow and the transport with which ranks simulate, `n` particles and data in all."""
    stages = [
        replace(stage, transport=stage.transport and shared_transport(stage.transport, ranks, n))
        for stage in flow.schedule
    ]
    return replace(flow, schedule=stages), shared_transport(transport, ranks, n)
