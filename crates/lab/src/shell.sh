#!/bin/sh
# The first process of a guest for people: a shell on the serial console, and the end with it.
. /setup
modprobe -a virtio_net tun
echo 64 >/proc/sys/vm/nr_hugepages
cd /root
export TERM=linux PS1='guest# '
# Ctrl-C needs a session with a controlling terminal. Busybox's shell edits lines, dash does not.
setsid cttyhack sh -c '. /host/greeting; exec busybox ash -i' </dev/ttyS0 >/dev/ttyS0 2>&1
echo 'The guest ends.'
poweroff -f
