"""The exception for errors that the user can fix."""


class UserError(ValueError):
    """Error that the user can fix. The command line prints only its message and exits with code 2.

    The message is one sentence of fact with the offending value, then one sentence with a hint.
    """
