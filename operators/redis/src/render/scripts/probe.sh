#!/bin/sh
# Ready: the data is loaded, and the server is a primary, or its link to one is up or broke within 30 seconds.
# Only shell built-ins beside the client: this runs every two seconds.
set -eu
client=$(command -v valkey-cli || command -v redis-cli)
IFS= read -r REDISCLI_AUTH </etc/redis-system/probe || [ -n "$REDISCLI_AUTH" ]
export REDISCLI_AUTH
info=$("$client" --user probe info)
return=$(printf '\r')
loading='' role='' link='' down=-1
while IFS=: read -r name value; do
  value=${value%"$return"}
  case $name in
    loading) loading=$value ;;
    role) role=$value ;;
    master_link_status) link=$value ;;
    master_link_down_since_seconds) down=$value ;;
  esac
done <<END
$info
END
[ "$loading" = 0 ] || { echo "not ready: loading=$loading"; exit 1; }
[ "$role" = master ] && exit 0
[ "$link" = up ] && exit 0
[ "$down" -ge 0 ] && [ "$down" -le 30 ] && exit 0
echo "not ready: role=$role link=$link down for $down s (-1: never linked)"
exit 1
