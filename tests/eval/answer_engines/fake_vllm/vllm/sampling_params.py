"""As vLLM has it."""


class RequestOutputKind:
    FINAL_ONLY = "final only"
