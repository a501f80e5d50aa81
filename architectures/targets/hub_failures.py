"""What the hub's failures mean to a user, in words that hold no token. Imports huggingface_hub where it is called.

Errors of huggingface_hub carry their request, whose headers hold the token, and an illegal header is quoted in its
message: so texts are taken from what the server said alone, and callers raise their own error after the except block,
where no context is left to print.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from architectures.files.masked_words import MASK, masked

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
LOOKS_LIKE_A_TOKEN = re.compile(r"(?<=[Bb]earer )\S+|\b(?:hf|api)_(?:oauth_)?[A-Za-z0-9]{8,}")
LOG_IN = "Log in with `hf auth login`, or set HF_TOKEN."
AGAIN = "Run the command again: what has arrived is kept."
STALE, PASSING = (409, 412), (408, 429, 500, 502, 503, 504)
FACTS: Mapping[int, str] = MappingProxyType(
    {401: "the hub does not know who asks", 403: "the hub does not allow it", 429: "the hub is asked too often"}
)
REMEDIES: Mapping[int, str] = MappingProxyType({401: LOG_IN, **dict.fromkeys(PASSING, AGAIN)})


@dataclass(frozen=True)
class HubFailure:
    """Why the hub did not do what it was asked.

    Attributes:
        reason: A sentence without its subject.
        remedy: A sentence; None where the reason alone tells none.
    """

    reason: str
    remedy: str | None = None


def explain_failure(error: BaseException, remedies: Mapping[int, str] = REMEDIES) -> HubFailure:
    """What an error of huggingface_hub, or one it was wrapped in, means.

    Args:
        error: Caught around huggingface_hub.
        remedies: By the HTTP status.
    """
    from huggingface_hub import errors  # imported here: half a second, and only hub ids need it

    cause = first_cause(error)
    if isinstance(cause, errors.HfHubHTTPError):
        return explain_answer(cause, remedies)
    if is_network_error(cause):
        kind = type(cause).__name__
        return HubFailure(f"the connection to the hub failed ({kind}).", f"Check network and HF_ENDPOINT. {AGAIN}")
    if isinstance(cause, json.JSONDecodeError):
        return HubFailure("what answers there is no hub.", "Check HF_ENDPOINT.")
    if isinstance(cause, UnicodeError):  # names the characters of a header, which may be the token's
        return HubFailure("a name or the token holds characters that no request may.", "Check HF_TOKEN.")
    message = without_token(str(cause)).strip() or type(cause).__name__
    words = message.splitlines()[0] if isinstance(cause, OSError) else " ".join(message.split())
    return HubFailure(f"{words.rstrip('.')}.")


def explain_answer(error: "HfHubHTTPError", remedies: Mapping[int, str]) -> HubFailure:
    """What an answer of the hub that is no success means, with what the server said about it."""
    from huggingface_hub import errors

    status = error.response.status_code
    if isinstance(error, errors.GatedRepoError):
        return HubFailure(f"it is gated, and who asks was not let in ({status}).", f"Ask on its page. {LOG_IN}")
    if isinstance(error, errors.RevisionNotFoundError):
        return HubFailure("it has no such revision (404).", "Name a branch, a tag or a commit that it has.")
    fact = FACTS.get(status, "the hub fails" if status >= 500 else "the hub refuses")
    words = without_token(" ".join((error.server_message or "").split())).rstrip(".")
    return HubFailure(f"{fact} ({status}{': ' * bool(words)}{words}).", remedies.get(status))


def first_cause(error: BaseException) -> BaseException:
    """The error that tells most: what the hub answered or the network did, below what wraps it.

    A bare ValueError of huggingface_hub tells more than the 400 below it: which file has what mistake.
    """
    from huggingface_hub import errors

    inner: BaseException | None = None if type(error) is ValueError else error
    while inner is not None:
        if isinstance(inner, errors.HfHubHTTPError) or is_network_error(inner):
            return inner
        inner = inner.__cause__
    return error


def is_network_error(error: BaseException) -> bool:
    """Whether a connection failed before there was an answer."""
    from huggingface_hub import errors

    is_base_error = type(error) is errors.HTTPError  # pyright: ignore[reportPrivateImportUsage]
    is_http = isinstance(error, errors.HTTPError)  # httpx's or httpx2's  # pyright: ignore[reportPrivateImportUsage]
    return is_http and not is_base_error and not isinstance(error, errors.HfHubHTTPError)


def without_token(text: str) -> str:
    """Text without this user's token, whatever it looks like, and without what looks like anybody's."""
    for token in filter(None, map(os.environ.get, TOKEN_VARIABLES)):
        text = text.replace(token.strip(), MASK)
    return masked(LOOKS_LIKE_A_TOKEN.sub(MASK, text))
