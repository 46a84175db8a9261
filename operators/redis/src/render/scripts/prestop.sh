#!/bin/sh
# A primary with replicas waits until the operator has moved its role to one of them, 20 seconds at most.
# A replica counts while it was heard within 3 seconds: one that vanished stays listed for a minute.
set -eu
client=$(command -v valkey-cli || command -v redis-cli)
IFS= read -r REDISCLI_AUTH </etc/redis-system/probe || [ -n "$REDISCLI_AUTH" ]
export REDISCLI_AUTH
return=$(printf '\r')
turns=100
while [ "$turns" -gt 0 ]; do
  info=$("$client" --user probe info replication) || exit 0
  role='' replica=''
  while IFS=: read -r name value; do
    value=${value%"$return"}
    case $name in
      role) role=$value ;;
      slave[0-9]*) case $value in *,state=online,*,lag=[0-3]) replica=$name ;; esac ;;
    esac
  done <<END
$info
END
  [ "$role" = master ] && [ -n "$replica" ] || exit 0
  sleep 0.2
  turns=$((turns - 1))
done
