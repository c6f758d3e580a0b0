"""The page without a server: it moves particles as the engine does, and can be used."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from problems import target_for
from sliceflow import metrics
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassIndices
from sliceflow.engine.flow import FlowSpec, ParticleRng, Step, simulate
from sliceflow.engine.frames import Axis, Orthogonal
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import compute_noise_factors, shrunk_flow
from sliceflow.engine.transports import SortedTransport

PLAY = Path(__file__).parents[2] / "docs" / "play"


@pytest.fixture(scope="module")
def computed(chromium):
    """What a script makes of `Flow` and `Measures`."""
    page = chromium.page((PLAY / "index.html").as_uri())
    yield page.run
    page.close()


def rows(n, kind):
    """Data (2, n): a ring, or values on a grid with wide gaps between them and ties."""
    z = Seed(4).child(kind, n).normal(n, 2)
    if kind == "ring":
        return (z / z.norm(dim=1, keepdim=True) * 1.5 + 0.1 * z).T.contiguous()
    return ((z > 0).double() * 3 + 0.01 * z).T.contiguous()


def ours(particles, data, seed, kappa=0.0, **conditions):
    """A flow of the engine: start, data, and what every step did."""
    stages = [
        Stage("flow", Orthogonal(), 20, SortedTransport(), taper=0.5, stores_maps=False)
    ]
    stages += [Stage("axis", Axis(), 2, SortedTransport(), is_axis_stage=True)]
    flow = FlowSpec(stages, Seed(seed), **conditions)
    factors = compute_noise_factors(
        particles.x.shape[1],
        data.x.shape[1],
        y_p=particles.y,
        y_q=data.y,
    )
    case = {
        "start": particles.x.flatten().tolist(),
        "data": data.x.flatten().tolist(),
        "steps": [],
    }
    case |= {"codes": None if data.y is None else data.y.values.tolist()}

    def keep(event):
        frame = Step(
            flow, event.stage_index, event.step_index, 0, particles, particles
        ).make_frame()
        theta = torch.eye(2) if frame.theta is None else frame.theta
        step = {
            "frame": theta.flatten().tolist(),
            "points": particles.x.flatten().tolist(),
        }
        step |= {
            "shrinkage": 0 if frame.theta is None else kappa,
            "distance": float(event.distance),
        }
        step |= {"size": flow.stages[event.stage_index].step_size_at(event.step_index)}
        if frame.theta_y is not None:
            step["offsets"] = frame.theta_y.tolist()
        case["steps"].append(step)

    fitted = shrunk_flow(flow, kappa, factors) if kappa else flow
    simulate(
        fitted,
        particles,
        target_for(fitted, particles, data),
        ParticleRng(Seed(0)),
        listeners=[keep],
    )
    return case


@pytest.mark.browser
def test_the_page_moves_particles_as_the_engine_does(computed):
    sizes = [(200, 200), (300, 170), (90, 250), (150, 40), (5, 2), (3, 1), (1, 7)]
    settings = [(m, n, kind, 0) for m, n in sizes for kind in ("ring", "gaps")]
    # Two of these particles meet up to rounding: the last bit says if they are tied.
    settings.remove((150, 40, "gaps", 0))
    settings += [(300, 170, "ring", 3.0)]
    cases = [
        ours(Cloud(Seed(m).normal(m, 2).T.contiguous()), Cloud(rows(n, kind)), m, kappa)
        for m, n, kind, kappa in settings
    ]
    script = f"""
    return {json.dumps(cases)}.map(({{ start, data, steps }}) => {{
      let points = Float64Array.from(start), worst = 0, far = 0;
      data = Float64Array.from(data);
      for (const step of steps) {{
        const moved = Flow.step(points, data, step.frame, step.size, step.shrinkage);
        points = moved.points;
        worst = Math.max(worst, ...points.map((x, i) => Math.abs(x - step.points[i])));
        far = Math.max(far, Math.abs(moved.distance - step.distance));
      }}
      const wrong = steps.slice(0, 20).map(
        ({{ size }}, k) => Math.abs(size - Flow.sizeOf(k, 20)));
      return [worst, far, steps.length, steps.length === 22 ? Math.max(...wrong) : 0];
    }});"""
    for setting, (worst, far, n_steps, sizes) in zip(
        settings, computed(script), strict=True
    ):
        assert worst < 1e-5, setting
        assert max(far, sizes) < 1e-5, setting
        assert n_steps == 22 or setting[3], setting  # shrinkage may end a stage early
    assert max(abs(x) for x in cases[0]["steps"][-1]["points"]) < 2.5  # something moved


@pytest.mark.browser
def test_classes_that_share_maps_move_as_in_the_engine(computed):
    code = torch.repeat_interleave(torch.arange(3), torch.tensor((60, 90, 30)))
    means = torch.stack((code - 1.0, (code - 1.0) ** 2))
    cases = []
    for amplifier, kappa in ((3, 0), (10, 0), (5, 2.0)):
        data = Cloud(Seed(1).normal(180, 2).T * 0.2 + means, ClassIndices(code))
        particles = Cloud(Seed(2).normal(180, 2).T.contiguous(), ClassIndices(code))
        case = ours(particles, data, 3, kappa, condition_dim=3, amplifier=amplifier)
        cases.append(
            case | {"steps": [step for step in case["steps"] if "offsets" in step]}
        )
    found = computed(f"""
    return {json.dumps(cases)}.map(({{ start, data, steps, codes }}) => {{
      let points = Float64Array.from(start), worst = 0;
      data = Float64Array.from(data);
      for (const step of steps) {{
        const condition = {{ points: codes, data: codes, offsets: step.offsets }};
        const {{ frame, size, shrinkage }} = step;
        points = Flow.step(points, data, frame, size, shrinkage, condition).points;
        worst = Math.max(worst, ...points.map((x, i) => Math.abs(x - step.points[i])));
      }}
      return worst;
    }});""")
    assert max(found) < 1e-5
    assert [len(case["steps"]) for case in cases[:2]] == [
        20,
        20,
    ]  # shrinkage may end a stage early


def test_the_digits_of_the_page_are_those_of_scikit_learn():
    data = load_digits()
    few = data.target < 4
    components = PCA(2, svd_solver="full").fit_transform(data.data[few])
    ours = np.rint(100 * components / components.std(0))[:400]
    text = (PLAY / "digits.js").read_text().split("DIGITS = ")[1].rstrip().rstrip(";")
    theirs = np.array(json.loads(text))
    assert np.array_equal(theirs[:, 2], data.target[few][:400])
    for i in (0, 1):  # up to a component's sign, and to rounding
        assert min(np.abs(theirs[:, i] - s * ours[:, i]).max() for s in (1, -1)) <= 1


@pytest.mark.browser
def test_the_page_measures_copies_as_we_do(computed):
    rng = np.random.default_rng(0)
    cases = []
    for n, decimals in ((40, 9), (300, 9), (300, 1)):  # rounded rows have ties
        train = rng.normal(size=(n, 2)).round(decimals)
        samples = rng.normal(size=(500, 2))
        samples[:200] = train[rng.integers(0, n, 200)]
        cases.append((train, samples))
    lists = [
        [train.T.ravel().tolist(), samples.T.ravel().tolist()]
        for train, samples in cases
    ]
    found = computed(f"""
    return {json.dumps(lists)}.map((lists) => {{
      const [rows, points] = lists.map((list) => Float64Array.from(list));
      const made = Measures.nearest(points, rows), real = Measures.nearest(rows, rows);
      return [Measures.ratio(made, real), Measures.copies(made, real)];
    }});""")
    for (train, samples), (ratio, copies) in zip(cases, found, strict=True):
        assert ratio == pytest.approx(metrics.nn_ratio(samples, train, device="cpu"))
        assert copies == pytest.approx(metrics.copy_rate(samples, train, device="cpu"))


@pytest.mark.browser
def test_smoothed_data_are_new_and_keep_mean_and_covariance(computed):
    data = rows(150, "ring")
    rng = np.random.default_rng(1)
    draws, again, line = computed(f"""
    const rows = Float64Array.from({json.dumps(data.flatten().tolist())});
    const list = {json.dumps(rng.normal(size=997).tolist())};
    let next = 0;
    const normal = () => list[next++ % list.length];
    const line = Float64Array.from([0, 1, 2, 3, 0, 1, 2, 3]);
    return [
      Measures.smoothed(rows, 0.5, 450, normal),
      Measures.smoothed(rows, 0, 450, normal),
      Measures.smoothed(line, 0.5, 4, normal),
    ].map((points) => [...points]);""")
    made = torch.tensor(draws, dtype=torch.float64).view(2, 450)
    assert torch.allclose(made.mean(1), data.mean(1))
    assert torch.allclose(torch.cov(made, correction=0), torch.cov(data, correction=0))
    assert metrics.nn_ratio(made.T.numpy(), data.T.numpy(), device="cpu") > 0.5
    assert again == data.flatten().tolist()
    assert np.allclose(line[:4], line[4:])  # points on a line stay on it


def test_the_page_is_small_and_needs_nothing_from_elsewhere():
    files = list(PLAY.iterdir())
    assert sum(file.stat().st_size for file in files) < 60_000
    for file in files:
        assert not re.search(r"https?://|//cdn", file.read_text(encoding="utf-8")), (
            file.name
        )


USED = """
const find = (id) => document.getElementById(id);
const number = (id) => parseFloat(find(id).textContent);
const points = () => find("canvas").toDataURL();
const set = (id, value) => {
  find(id).value = value;
  find(id).dispatchEvent(new Event("input", { bubbles: true }));
  find(id).dispatchEvent(new Event("change", { bubbles: true }));
};
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const began = find("play").textContent === "Pause"; // it moves by itself
if (began) find("play").click();
find("reset").click();
"""


@pytest.fixture
def used(chromium):
    """What a script returns on a fresh page, after which there must be no error."""
    page = chromium.page((PLAY / "index.html").as_uri())
    yield lambda script: page.run(USED + script)
    assert page.errors() == []
    page.close()


@pytest.mark.browser
class TestUse:
    def test_playing_brings_particles_to_the_data_and_pausing_stops(self, used):
        found = used("""
        set("rate", 60);
        find("step").click();
        const first = number("distance");
        find("play").click();
        while (number("number") < 40) await pause(50);
        find("play").click();
        const paused = number("number"), text = find("play").textContent;
        await pause(200);
        const stayed = number("number") === paused;
        const status = find("status").textContent;
        return { first, last: number("distance"), stayed, text, status };""")
        assert found["last"] < 0.3 * found["first"]
        assert found["stayed"]
        assert found["text"] == "Play"
        assert found["status"].startswith("Paused. Step ")

    def test_back_and_step_repeat_the_same_picture_and_reset_the_first(self, used):
        found = used("""
        set("entropy", 0.3);
        const pictures = [points()];
        for (let i = 0; i < 3; i++) { find("step").click(); pictures.push(points()); }
        find("back").click();
        const back = points() === pictures[2];
        find("step").click();
        const again = points() === pictures[3];
        find("reset").click();
        const first = points() === pictures[0];
        return [back, again, first, new Set(pictures).size, number("number")];""")
        assert found == [True, True, True, 4, 0]

    def test_data_are_painted_with_the_pointer_and_with_the_keyboard(self, used):
        found = used("""
        find("clear").click();
        const off = find("play").disabled, box = find("canvas").getBoundingClientRect();
        const at = (kind, x, y) => find("canvas").dispatchEvent(new PointerEvent(kind, {
          clientX: box.left + x * box.width, clientY: box.top + y * box.height,
          isPrimary: true, bubbles: true }));
        at("pointermove", 0.5, 0.5);  // no button is down
        const none = find("status").textContent;
        at("pointerdown", 0.2, 0.2);
        for (let i = 0; i < 9; i++) at("pointermove", 0.2 + 0.05 * i, 0.3);
        at("pointerup", 0.6, 0.3);
        at("pointermove", 0.9, 0.9);
        const painted = find("status").textContent;
        document.querySelector("[value='2']").click();
        find("canvas").focus();
        for (const key of ["ArrowLeft", "ArrowUp", "Enter", "Enter"])
          find("canvas").dispatchEvent(new KeyboardEvent("keydown", { key }));
        const typed = find("status").textContent;
        for (let i = 0; i < 12; i++) find("step").click();
        const shape = find("shape").value;
        return { off, none, painted, typed, shape, ratio: number("ratio") };""")
        assert found.pop("ratio") < 14
        assert found == {
            "off": True,
            "none": "No data: paint some.",
            "painted": "30 data.",
            "typed": "36 data.",
            "shape": "own",
        }

    def test_the_amplifier_tells_classes_apart(self, used):
        found = used("""
        const strays = [];
        for (const xi of [0, 20]) {
          set("amplifier", xi); set("steps", 60);
          while (!find("step").disabled) find("step").click();
          const { steps, rows, colors } = Play.shown();
          const points = steps.at(-1).points[0];
          const m = points.length / 2;
          let wrong = 0;  // particles of one moon whose nearest datum is of the other
          for (let i = 0; i < m; i++) {
            const far = ([x, y]) => (x - points[i]) ** 2 + (y - points[m + i]) ** 2;
            const nearer = (best, row) => (far(row) < far(best) ? row : best);
            const near = rows.reduce(nearer);
            wrong += near[2] !== colors[0];
          }
          strays.push(wrong / m);
        }
        const output = document.querySelector("output[for=amplifier]");
        return [...strays, output.textContent];""")
        ignored, apart, text = found
        assert ignored > 0.3
        assert apart < 0.05
        assert text == "∞"

    @pytest.mark.parametrize(
        ("shape", "sliders"),
        [
            ("moons", {"smoothing": 0.5}),
            ("digits", {"smoothing": 0.6, "amplifier": 10}),
        ],
    )
    def test_the_python_lines_give_what_is_shown(self, used, shape, sliders):
        asked = "".join(f'set("{name}", {value});' for name, value in sliders.items())
        text, points = used(f"""
        set("shape", "{shape}"); set("steps", 60); set("particles", 1000); {asked}
        while (!find("step").disabled) find("step").click();
        find("python").open = true;
        await pause(100);
        const all = Play.shown().steps.at(-1).points;
        const part = (x, d) => {{
          const n = x.length / 2;
          return [...x.subarray(d * n, (d + 1) * n)];
        }};
        const joined = [0, 1].map((d) => all.flatMap((x) => part(x, d)));
        return [find("lines").textContent, joined];""")
        shown = np.array(points).T
        made = []
        for seed in (0, 1):
            space = {}
            exec(text.replace("random_state=0", f"random_state={seed}"), space)
            made.append(space["particles"])
        rows = space["X"]
        assert abs(len(made[0]) - len(shown)) <= 3  # each class is rounded
        assert space["new"].shape == (1000, 2)
        between = metrics.sliced_wasserstein(made[0], made[1])
        assert metrics.sliced_wasserstein(shown, made[0]) < max(2 * between, 0.04)
        ratios = [metrics.nn_ratio(x, rows, device="cpu") for x in (shown, made[0])]
        assert ratios[0] == pytest.approx(ratios[1], rel=0.25, abs=0.05)

    @pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (360, "dark")])
    def test_links_lead_somewhere_and_it_is_accessible_and_fits(
        self, chromium, width, scheme
    ):
        page = chromium.page((PLAY / "index.html").as_uri(), width=width, scheme=scheme)
        links = page.run(
            "return [...document.links].map((a) => a.getAttribute('href'))"
        )
        assert len(links) > 2
        assert all((PLAY / link).exists() for link in links), links
        assert page.run("return document.documentElement.scrollWidth") <= width
        stops = "[...document.querySelectorAll('a, button, input, select, canvas')]"
        assert (
            page.run(f"return {stops}.filter((node) => node.tabIndex < 0).length") == 0
        )
        if find_spec("axe_core_python"):
            assert page.accessible() == []
        page.close()
