"""What a client does with gangs: submit, follow, look, explain, stop. Below the command line and `import shoal`.

Nothing here decides anything: it reads what the controllers stored, or asks the leading one. It needs neither Ray nor
a Kubernetes client library. Nothing is imported here, so that `import shoal` stays light.
"""
