#!/bin/sh
# The first process of a guest for tests. It obeys the host through a virtio-serial port: NUMBER, LENGTH, a shell script;
# and answers NUMBER, STATUS, LENGTH, what the script printed. A newline ends the numbers.
. /setup
tries=0
# Its number is that of the virtio device: network cards may come before it.
until [ -c /dev/vport*p1 ] || [ $((tries += 1)) -gt 100 ]; do sleep 0.05; done
dmesg -n 7 # From now on the console shows what drivers say.
exec 3<>$(echo /dev/vport*p1)
echo 0 0 0 >&3
while read -r number length <&3; do
    head -c "$length" <&3 >/run/script
    sh /run/script >/run/output 2>&1 </dev/null 3>&-
    status=$?
    echo "$number $status $(stat -c %s /run/output)" >&3
    cat /run/output >&3
done
poweroff -f
