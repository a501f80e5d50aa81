"""Words of a command line as files keep them: without what looks like a secret. No torch."""

import re

NAMES = r"(?:api_?key|key|token|secret|password|passwd|credentials?|auth)"
KEY = rf"""(?<![A-Za-z0-9]){NAMES}["']?\s*"""
WHOLE = re.compile(rf"(?is)([\w.\[\]-]*{KEY}=)(?!\$\{{).+")
WITHIN = re.compile(rf"""(?i)({KEY}[:=]\s*)(?!["']?\$\{{)("[^"]*"|'[^']*'|[^\s,}}\]][^,}}\]\n]*)""")
IN_A_URL = re.compile(r"(://[^/\s:@]*:)[^@\s/]+@")
MASK = "***"


def masked(word: str) -> str:
    """A word with the values of keys such as api_key, token and password masked; a ${reference} stays.

    Whole words are told: data.max_new_tokens and tokenizer are no secrets.
    """
    if WHOLE.fullmatch(word):
        return WHOLE.sub(rf"\1{MASK}", word)
    return IN_A_URL.sub(rf"\1{MASK}@", WITHIN.sub(rf"\1{MASK}", word))
