#!/bin/bash
# The first process of a namespace: gives a host of the sandbox its name, address, accounts, /run, munge; then waits.
# usage: init.sh STATE HOST ADDRESS [SHARED_FOLDER...]
# ADDRESS: of a bridge on the controller, of eth0 on a node. Shared folders: visible on a node although its /tmp is its own.
set -euo pipefail
state=$1 host=$2 address=$3
shift 3

mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/munge /run/mysqld
chown munge:munge /run/munge
chown mysql:mysql /run/mysqld
for file in hosts passwd group; do mount --bind "$state/etc/$file" "/etc/$file"; done
mkdir -p /etc/slurm
mount --bind "$state/etc/slurm" /etc/slurm
hostname "$host"
ip link set lo up

install -o munge -g munge -m 400 "$state/etc/munge.key" /run/munge/munge.key
setpriv --reuid munge --regid munge --clear-groups munged --key-file=/run/munge/munge.key \
  --pid-file=/run/munge/munged.pid --log-file=/run/munge/munged.log --seed-file=/run/munge/munged.seed --num-threads=2
chmod 755 /run/munge

if [ "$host" = ctl ]; then
  ip link add br0 type bridge
  ip addr add "$address/24" dev br0
  ip link set br0 up
else
  # A node shares no memory and no /tmp with another, as on a real cluster.
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  mkdir /run/shared
  number=0
  for folder in "$@"; do
    mkdir -p "/run/shared/$number"
    mount --bind "$folder" "/run/shared/$number"
    number=$((number + 1))
  done
  mount -t tmpfs -o mode=1777 tmpfs /tmp
  number=0
  for folder in "$@"; do
    mkdir -p "$folder"
    mount --bind "/run/shared/$number" "$folder"
    number=$((number + 1))
  done
  until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
  ip addr add "$address/24" dev eth0
  ip link set eth0 up
  ip route add default via "${address%.*}.1"
  mkdir -p "$state/spool/$host"
  slurmd -N "$host" -D >>"$state/log/slurmd-$host.out" 2>&1 &
fi
touch "$state/run/$host.ready"

trap 'exit 0' TERM INT
while :; do
  sleep 3600 &
  wait $! || true
done
