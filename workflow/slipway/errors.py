"""The one exception that means "the user can mend this"."""


class SlipwayError(Exception):
    """A fault with a message for the user: what (key or file), its value, why, and what works instead.

    Scripts print the message alone, without a traceback, and exit with status 1.
    """
