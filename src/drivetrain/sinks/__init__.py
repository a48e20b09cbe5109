"""Where rows of the ledger go, beside the store: BigQuery, Parquet files, OpenTelemetry, webhooks.

A process of its own reads the ledger in the order of its commits, and keeps a checkpoint for each sink: what a target
does not take now waits in the store. Import this package's modules for one sink; here there is nothing to import.
"""
