"""The pick: filters, scores, and the ordered candidates. Pure: no clock, no sockets, no globals."""
