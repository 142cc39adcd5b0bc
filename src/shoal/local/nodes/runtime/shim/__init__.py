"""The shim: a tiny process between the node agent and one container, so that nothing a container starts outlives it.

Run by the agent as `python -I -S shim run DIR` with DIR/plan.json; imports nothing but the standard library, because
it must start in milliseconds and stay small. The outer half drains output into DIR/log, takes input at DIR/attach, and
writes DIR/state.json and DIR/exit.json; the inner half is a child subreaper (PID 1 where a PID namespace is allowed),
starts the main process and forwards SIGTERM to that one alone: a signal to the group would kill Ray's GCS before the
process that waits for it. It outlives the agent on purpose: a restarted agent finds it by pid *and* start time.
"""
