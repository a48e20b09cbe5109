"""Which cell of a shared row holds what: the one table that the counting and the reading side agree on."""

# Upper bounds of the histograms, in seconds.
FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOTAL_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
OUTPUT_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
LOAD_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

# A row "attempts", of (dialect, model, engine, outcome, status class): how many, tokens, cost, three histograms.
# A histogram takes a cell for its sum, one per bucket, and one for what is above all of them.
TOKENS = ("prompt", "cached", "completion", "reasoning")
TOKENS_AT = 1
COST_AT = TOKENS_AT + len(TOKENS)
FIRST_AT = COST_AT + 1
TOTAL_AT = FIRST_AT + len(FIRST_TOKEN_S) + 2
OUTPUT_AT = TOTAL_AT + len(TOTAL_S) + 2
ATTEMPT_CELLS = OUTPUT_AT + len(OUTPUT_TOKEN_S) + 2

LATENCIES = (
    ("drivetrain_first_token_seconds", "From the attempt's start to its first content.", FIRST_AT, FIRST_TOKEN_S),
    ("drivetrain_request_duration_seconds", "From the attempt's start to its end.", TOTAL_AT, TOTAL_S),
    ("drivetrain_output_token_seconds", "Time per token after the first.", OUTPUT_AT, OUTPUT_TOKEN_S),
)

# The one row "gauges" of a process.
GAUGES = {
    "requests_in_flight": "Requests that are being answered.",
    "requests_queued": "Requests that wait for their turn.",
    "ledger_backlog_rows": "Rows of the ledger that are not in the database yet.",
    "ledger_lost_rows": "Rows of the ledger that neither memory nor disk could keep.",
    "store_away": "Processes that cannot reach the database.",
    "shared_state_away": "Processes that cannot reach what replicas count limits and budgets in.",
}

# The rows "refused" and "keys_refused": a cell for each value of their only label.
RESOURCES = ("requests", "tokens", "concurrency", "money")
KEY_STATUSES = ("401", "403")

# A row "sink_state" of a sink's name: rows that wait for it, and for how long the first of them has. A row "sunk" of
# the same: rows that it took, and those that it refused for good.
SINK_STATE = {
    "sink_lag_rows": "Rows of the ledger that a sink has not taken yet.",
    "sink_lag_seconds": "How long the first of them has waited.",
}
SUNK = {
    "sink_rows": "Rows of the ledger that a sink has taken.",
    "sink_dead_letters": "Rows that a sink refused for good, and that lie in its file of dead letters.",
}

# Rows that say what is now: a dead process has nothing to say.
LIVE = frozenset({"gauges", "loaded", "engine_up", "sink_state"})
