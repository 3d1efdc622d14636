"""The control commands of the engine, declared once, one file each.

`ipc.control.declaration` says what a declaration is, `ipc.control.registry.COMMANDS` has them all.
"""
