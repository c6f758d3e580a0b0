"""What the amplifier ξ does: the same class-conditional flow with ξ = 0, 2, 5 and 10.

    python examples/amplifier.py --out examples-out

writes `amplifier.png`. Each row was asked for one class. At ξ = 0 the flow does not see the classes;
the larger ξ, the further apart they are held. The number over each grid is the share of samples that a
support vector machine, trained on real pictures, recognises as the class asked for.
"""

from grids import BLUE, arguments, by_class, panels, read, rows, save, settings, show
from sklearn.svm import SVC

from sliceflow import ImageFlow

AMPLIFIERS = (0, 2, 5, 10)


def main() -> None:
    """Fit four flows, let a classifier judge them, draw them."""
    args = arguments(__doc__)
    train, test = read(args)
    judge = SVC().fit(rows(train.images, train.levels)[:10_000], train.labels[:10_000])
    real = judge.score(rows(test.images, test.levels)[:2000], test.labels[:2000])
    fig, axes = panels(len(AMPLIFIERS), 14, 5.4)
    for ax, amplifier in zip(axes, AMPLIFIERS, strict=True):
        flow = ImageFlow(**settings(args, train), amplifier=amplifier, n_knots=0)
        flow.fit(train.images, train.labels)
        images, labels = flow.particles_, flow.particle_conditions_
        accuracy = judge.score(rows(images, train.levels)[:2000], labels[:2000])
        names = [f"class {label}" for label in flow.classes_] if ax is axes[0] else None
        title = f"ξ = {amplifier}: {accuracy:.1%} recognised"
        show(ax, by_class(images, labels, 7), train.levels, title, row_names=names, colour=BLUE)
        print(f"amplifier {amplifier}: {accuracy:.3f} recognised as the class asked for")
    fig.suptitle(f"{train.name}, batched samples by class (real test pictures: {real:.1%} recognised)")
    print("wrote", save(fig, args.out / "amplifier.png"))


if __name__ == "__main__":
    main()
