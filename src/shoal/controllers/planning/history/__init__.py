"""What gangs did: their waits, runs, requeues and GPU-hours, kept after the objects are gone.

One row per round of a gang: it waits, it runs, it ends or goes back to the queue. `records` says what a row is and what
one look at a gang changes, `store` keeps rows in SQLite or PostgreSQL, `recorder` is what the planning loop tells.

To read it from another process, or with an asker's rights, ask the leader (a Question `History`, `sdk.asking.history`).
In the leader's own process `PlanningLoop.history` has the same: `await history.runs(HistoryQuery(since=…, until=…))`
gives `RunRecord`s that overlap the window, newest first (moments are microseconds, 0 for what has not come yet: a gang
with `started_at` 0 waits, one with `ended_at` 0 goes on), and `totals` sums them by user, namespace and queue. Rows
name gangs of every namespace: what is shown to a user passes `questions.readers.Readers` first, as in `asked`.
"""
