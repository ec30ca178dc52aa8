# What every guest's first process does first.
export PATH=/usr/bin HOME=/root
chmod 755 / # Linux makes it writable for everybody.
chmod 1777 /tmp
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/hugepages
mount -t devpts pts /dev/pts
mount -t hugetlbfs huge /dev/hugepages
hostname guest
# IPv6 would send packets of its own, at times of its own.
for which in all default; do echo 1 >/proc/sys/net/ipv6/conf/$which/disable_ipv6; done
ip link set lo up
modprobe -a virtio_pci virtio_console
