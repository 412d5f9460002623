"""One queue for the extproc processes of a host: who owns it, how the others reach it, and what it grants."""
