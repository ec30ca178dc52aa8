cat <<'end'

 A guest with two virtio network cards, 0000:00:02.0 and 0000:00:03.0. Behind each is a network that QEMU plays, where
 10.0.2.2 answers (no network namespaces could be made, so there are no hosts). Try:

   ringpass list                                     the cards, and what would make them faster
   ringpass fwd 0000:00:02.0 tap:t0 --json >log &    from the card to the guest's own kernel
   ip address add 10.0.2.15/24 dev t0; ip link set t0 up; ping -c 3 10.0.2.2
   kill %1; tail -n 1 log                            what passed
   ringpass pktgen 0000:00:03.0 --rate 10k -t 5      generated packets

 exit, poweroff -f or Ctrl-A X ends the guest.

end
