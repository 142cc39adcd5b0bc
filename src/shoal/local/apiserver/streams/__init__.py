"""Streams inside pods: exec, attach and port-forward, over WebSockets and SPDY."""

from shoal.local.apiserver.streams.channels import Channels
from shoal.local.apiserver.streams.terminals import ExecOptions, Program

__all__ = ["Channels", "ExecOptions", "Program"]
