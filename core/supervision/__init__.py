"""Pure tables of supervision: which children there are, how their state may move, when to restart
or give up.

Owns: the decisions. Never knows: processes, signals, files or clocks; `core.runtime.supervisor`
feeds it what happened and carries out what it answers.
"""
