"""How ext_proc streams reach a session: `lean` speaks HTTP/2 itself, `grpcio` leaves that to gRPC's library."""
