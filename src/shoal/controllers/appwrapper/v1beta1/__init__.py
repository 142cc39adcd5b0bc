"""MCAD's own dialect; `appwrapper.reconciler` goes through its steps.

`status` words its states, `follow` watches a gang that runs, `dead_ends` finds those that can have no pod any more, and
`placing` helps pod schedulers that are not ours.
"""
