"""Questions about gangs, answered by the leader: one door that works on every API server.

`desk.Desk` answers, `subject.Subject` is what each dialect tells of a gang. Nothing is imported here: both dialects
need `subject`, and the desk needs them.
"""
