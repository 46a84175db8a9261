#!/bin/sh
# Start the server with the address under which the others reach it.
set -eu
server=$(command -v valkey-server || command -v redis-server)
exec "$server" /etc/redis/redis.conf --replica-announce-ip "$POD_IP"
