"""The dialect of MCAD's successor.

`components` goes through its phases, `status` words them, `objects` makes what is wrapped, `limits` says for how long
it waits and how often it tries again.
"""
