"""The dry run: what would fail, or silently train the wrong thing, found before anything is held."""
