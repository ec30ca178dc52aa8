cat <<'end'

 A guest with two virtio network cards, 0000:00:02.0 and 0000:00:03.0. Behind them are two hosts, 198.18.0.1 and
 198.18.0.2. The first pings the second all the time, and nobody carries its pings yet. Try:

   ringpass list                                     the cards, and what would make them faster
   ringpass dump 0000:00:02.0                        what arrives there; Ctrl-C ends it, as all that follow
   ringpass fwd 0000:00:02.0 0000:00:03.0            now the pings are answered
   ringpass fwd capture,file=a.pcap:0000:00:02.0 0000:00:03.0 -t 5
   ringpass dump pcap:a.pcap                         what passed
   ringpass pktgen 0000:00:02.0 --rate 10k -t 5      generated packets

 With & at its end, a command runs beside others. exit, poweroff -f or Ctrl-A X ends the guest.

end
