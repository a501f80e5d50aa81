"""Changes of scorecard.json that leave it one that fits together."""


def two_lookaheads_alone(record):
    """The first two."""
    for row in (*record["acceptance"], *record["speedup"], *record["differences"]):
        del row["lookahead"][2:]
    for row in record["acceptance"]:
        for part in (row["by_prompt"]["rounds"], *(one["lookahead"] for p in row["bins"] for one in p["bins"])):
            del part[2:]
    for row in record["speedup"]:
        row["best_lookahead"] = 1
    del record["latency"]["verify"][2:]
    record["live"]["lookahead"] = 1
