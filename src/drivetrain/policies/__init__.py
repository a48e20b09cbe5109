"""What is allowed, for how long, and what it costs: pure arithmetic. No clock, no I/O; the time is handed in.

`access` which models a key may use · `calendars` when a budget's window begins and ends · `classes` how urgent a
request is, and whose turn it is · `demand` what a request may take · `fairness` turns between tenants · `prices` what
it took, in money · `windows` how much of a rate is left.
"""
