"""The pool of child processes, one for each replica, and the process that they are forked from."""
