"""Print the config's JSON schema, for editors: `make schema` keeps workflow/schemas/config.schema.json up to date."""

import json

from slipway.config.schema import Config


def json_schema() -> str:
    """Return the schema as text, ending with a newline."""
    return json.dumps(Config.model_json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    print(json_schema(), end="")
