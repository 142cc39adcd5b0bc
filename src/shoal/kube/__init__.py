"""How Shoal talks to any API server: a real one, the embedded one in-process, or one that fails on purpose.

Start with `client` (verbs), `cache` (a live copy of one kind), `runtime` (the loop around a reconciler), `writes`
(careful writing), `lease` (one leader) and `events`. `kubeconfig` makes transports;
`docs/internals/kube.md` tells how they fit together.
"""
