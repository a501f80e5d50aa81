"""What the hub's failures mean to a user, in words that hold no token. Imports huggingface_hub where it is called.

Errors of huggingface_hub carry their request, whose headers hold the token, and an illegal header is quoted in its
message: so texts are taken from what the server said only, and callers raise their own error after the except block,
where no context is left to print.
"""

import json
import os
import re

from architectures.files.masked_words import MASK, masked

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
LOOKS_LIKE_A_TOKEN = re.compile(r"(?<=[Bb]earer )\S+|\b(?:hf|api)_(?:oauth_)?[A-Za-z0-9]{8,}")
HUB_HINT = (
    "Check the name, the network and HF_ENDPOINT, and log in with `hf auth login` or HF_TOKEN where it is private or "
    "gated; the same command continues."
)


def hub_failure(error: BaseException) -> str:
    """What an error of huggingface_hub, or one it was wrapped in, means: a sentence without its subject."""
    from huggingface_hub import errors  # imported here: half a second, and only hub ids need it

    # What the hub answered or the network did is below what wraps it; a bare ValueError names a file with a mistake.
    causes = [error]
    while type(error) is not ValueError and causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    for cause in causes:
        if isinstance(cause, errors.GatedRepoError):
            return f"it is gated, and who asks was not let in ({cause.response.status_code}): ask on its page."
        if isinstance(cause, errors.HfHubHTTPError):
            words = without_token(" ".join((cause.server_message or "").split())).rstrip(".")
            return f"the hub refuses ({cause.response.status_code}{': ' * bool(words)}{words})."
        # httpx's or httpx2's; huggingface_hub's own errors have their base.
        if isinstance(cause, errors.HTTPError) and type(cause) is not errors.HTTPError:  # pyright: ignore[reportPrivateImportUsage]
            return f"the connection to the hub failed ({type(cause).__name__})."
    if isinstance(error, json.JSONDecodeError):
        return "what answers at HF_ENDPOINT is no hub."
    if isinstance(error, UnicodeError):  # names the characters of a header, which may be the token's
        return "a name or HF_TOKEN holds characters that no request may."
    text = without_token(str(error)).strip() or type(error).__name__
    return (text.splitlines()[0] if isinstance(error, OSError) else " ".join(text.split())).rstrip(".") + "."


def without_token(text: str) -> str:
    """Text without this user's token, whatever it looks like, and without what looks like anybody's."""
    for token in filter(None, map(os.environ.get, TOKEN_VARIABLES)):
        text = text.replace(token.strip(), MASK)
    return masked(LOOKS_LIKE_A_TOKEN.sub(MASK, text))
