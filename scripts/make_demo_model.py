"""Make a demo model and warm-start it by supervised training (rule make_demo_model)."""

from slipway.cli import run, stage_parser, start
from slipway.config.load import load_config, named
from slipway.config.paths import ResultPaths
from slipway.errors import SlipwayError


def main() -> None:
    """Read the arguments and run the stage."""
    parser = stage_parser(__doc__)
    parser.add_argument("model", help="name under `models` in the config, one with a `demo` recipe")
    arguments = start(parser)
    recipe = named(load_config(arguments.config).models, "models", arguments.model).demo
    if recipe is None:
        raise SlipwayError(f"models.{arguments.model}: has no `demo` recipe, so there is nothing to make")
    # after what can be told without it: torch takes seconds to import
    from slipway.models.demo import make_demo_model

    paths = ResultPaths(arguments.results)
    make_demo_model(recipe, paths.data(recipe.data), paths.hf_model(arguments.model))


if __name__ == "__main__":
    run(main)
