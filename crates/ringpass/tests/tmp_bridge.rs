mod common;
use std::time::Instant;
use common::guest::{Guest, alone};
use common::pairs::Pairs;
use ringpass_lab::Qemu;
#[test]
fn bridge() {
    let _alone = alone();
    let kinds = ["disable-modern=on","a=","disable-legacy=on","packed=on","mrg_rxbuf=off","mq=on","event_idx=off","indirect_desc=off","disable-modern=on,any_layout=off,mrg_rxbuf=off,event_idx=off,indirect_desc=off","in_order=on","packed=on,in_order=on","queue_reset=off,rx_queue_size=1024"];
    let old = std::env::var_os("OLD").is_some();
    let kinds: Vec<String> = kinds[..if old {9} else {12}].iter().map(|k| if *k == "a=" { "virtio-net-pci".into() } else { format!("virtio-net-pci,{k}")}).collect();
    let start = Instant::now();
    let guest = Guest::new().memory(512).cpus(2).qemu(if old { Qemu::V7_2 } else { Qemu::Newest });
    let pairs = Pairs::boot(guest, kinds.iter().map(String::as_str));
    pairs.guest.run("modprobe -a virtio_net bridge");
    eprintln!("up {:.1}", start.elapsed().as_secs_f64());
    for (pair, kind) in kinds.iter().enumerate() {
        let t = Instant::now();
        let cards = Pairs::cards(pair);
        pairs.guest.run(&format!("ip link add br{pair} type bridge; ip link set br{pair} up; for c in {} {}; do i=$(ls /sys/bus/pci/devices/$c/virtio*/net); ip link set $i master br{pair} up; cat /sys/bus/pci/devices/$c/virtio*/features; done", cards[0], cards[1]));
        pairs.first_ping(pair);
        let a = t.elapsed().as_secs_f64();
        pairs.pings(pair);
        let b = t.elapsed().as_secs_f64();
        let bits = pairs.tcp(pair);
        let c = t.elapsed().as_secs_f64();
        pairs.file(pair);
        eprintln!("{kind}: {a:.1} {b:.1} {c:.1} {:.1} s, {:.0} Mbit/s", t.elapsed().as_secs_f64(), bits/1e6);
    }
}
