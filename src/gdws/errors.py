"""The exceptions that a user's mistake raises."""


class GdwsError(ValueError):
    """Bad input. The message is one sentence that names what was given and what was expected."""


class OutOfReach(GdwsError):
    """A budget that nothing meets. least: what the smallest choices cost, in the unit of whoever raises it."""

    def __init__(self, message: str, least: float) -> None:
        super().__init__(message)
        self.least = least
