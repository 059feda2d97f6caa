"""verl's own config by dotted key, as shipped with Slipway: known without Hydra, which takes a second.

`python -m slipway.config.verl_defaults` prints the file anew; a test fails when it differs from the installed verl.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("verl_defaults.json")


@cache
def verl_defaults() -> dict[str, Any]:
    """Return the default of every key of verl's config for Megatron; interpolations are left as they are."""
    defaults: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return defaults


@cache
def truth_values() -> tuple[str, ...]:
    """Return the keys whose default is true or false."""
    return tuple(key for key, default in verl_defaults().items() if isinstance(default, bool))


def main() -> None:
    """Print the defaults of the installed verl."""
    from slipway.config.verl import composed_defaults

    json.dump(composed_defaults(), sys.stdout, indent=0, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
