"""The one exception that means: the user can mend this."""


class UserError(ValueError):
    """A mistake the user can mend. The command line prints its message alone and exits with code 2.

    The message is one sentence of fact with the offending value, then one sentence of remedy.
    """
