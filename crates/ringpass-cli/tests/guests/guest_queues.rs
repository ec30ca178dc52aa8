//! Linux's own ixgbe with one queue for each processor: receive side scaling, interrupts, the indirection
//! table.

use crate::common::Namespace;
use crate::common::guest::{Guest, Sender, Wire, counters, ping, tcp, up};

/// Fetches a page over `count` connections, each from a different port.
fn connections(host: &Namespace, count: usize) {
    let url = format!("http://198.18.1.2/page?[1-{count}]");
    let text = host.run(&["curl", "-sS", "--max-time", "60", "-H", "Connection: close", &url]);
    assert_eq!(text.matches("a page").count(), count, "{text}");
}

/// Returns how many packets each receive queue has received since the last call.
fn received(guest: &Guest, queues: usize, before: &mut Vec<u64>) -> Vec<u64> {
    let counters = counters(guest, 0);
    let now: Vec<u64> = (0..queues).map(|queue| counters[&format!("rx_queue_{queue}_packets")]).collect();
    let new = now.iter().zip(before.iter()).map(|(now, before)| now - before).collect();
    *before = now;
    new
}

fn spread(cpus: u32) {
    let queues = cpus as usize;
    let wire = Wire::new(1, &[]);
    let guest = Guest::new().cpus(cpus).card(&wire.socket()).boot();
    up(&guest, 0, 1);
    ping(&guest, "198.18.1.1", "");

    eprintln!("- a vector for each of {queues} queues");
    let interrupts = guest.run("cat /proc/interrupts");
    for queue in 0..queues {
        assert!(interrupts.contains(&format!("eth0-TxRx-{queue}")), "{interrupts}");
    }

    eprintln!("- connections spread over the queues");
    guest.run("mkdir -p /run/www; echo a page >/run/www/page; httpd -p 80 -h /run/www");
    // Without flow director, which steers a connection to the queue that it was sent from.
    guest.run("ethtool -K eth0 ntuple on");
    let mut before = vec![0; queues];
    received(&guest, queues, &mut before);
    connections(&wire.host, 64);
    let got = received(&guest, queues, &mut before);
    eprintln!("{got:?}");
    // About five packets a connection; by chance, one of four queues gets three connections or fewer once in
    // 20,000 runs.
    assert!(got.iter().all(|&packets| packets > 16), "{got:?}");

    eprintln!("- the indirection table, set to one queue");
    for only in [queues - 1, 0] {
        guest.run(&format!(
            "ethtool -X eth0 weight {}",
            (0..queues).map(|q| if q == only { "1 " } else { "0 " }).collect::<String>()
        ));
        received(&guest, queues, &mut before);
        connections(&wire.host, 16);
        let got = received(&guest, queues, &mut before);
        eprintln!("{got:?}");
        // Frames without ports or without IP go to queue 0, whatever the table says.
        assert!(got[only] > 64 && got.iter().enumerate().all(|(q, &n)| q == only || n < 10), "{got:?}");
    }
    guest.run("ethtool -X eth0 default; ethtool -K eth0 ntuple off");

    eprintln!("- TCP both ways, with flow director's guesses");
    tcp(&guest, &wire.host, "198.18.1.1", Sender::Guest);
    tcp(&guest, &wire.host, "198.18.1.1", Sender::Host);
    connections(&wire.host, 32);
}

#[test]
fn two_queues() {
    spread(2);
}

#[test]
fn four_queues() {
    spread(4);
}
