"""Convert a model of the config from Hugging Face's format to Megatron's, and prove it on the written files."""

from slipway.cli import run, stage_parser, start
from slipway.config.load import load_config, named
from slipway.config.paths import ResultPaths
from slipway.models.source import local_folder


def main() -> None:
    """Read the arguments and convert."""
    parser = stage_parser(__doc__)
    parser.add_argument("model", help="name of the model under `models`")
    arguments = start(parser)
    config = load_config(arguments.config)
    paths = ResultPaths(arguments.results)
    model = named(config.models, "models", arguments.model)
    # after what can be told without it: torch takes seconds to import
    from slipway.convert.to_megatron import convert_megatron

    source = local_folder(model, arguments.model, paths)
    convert_megatron(source, paths.megatron_model(arguments.model))


if __name__ == "__main__":
    run(main)
