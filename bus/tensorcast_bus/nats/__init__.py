"""The bus over a NATS server: the one room of this floor that opens sockets and starts a program."""
