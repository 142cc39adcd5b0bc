"""What both dialects tell in a status.

`admission` keeps what was given, `explain` says why an AppWrapper waits, `messages` when that is written. The states
themselves are in `v1beta1.status` and `v1beta2.status`.
"""
