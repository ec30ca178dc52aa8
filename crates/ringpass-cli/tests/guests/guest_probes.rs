//! Probes of a program that runs, read by bpftrace.

use std::path::Path;
use std::time::Duration;

use ringpass_lab::Guest;

use crate::common::RINGPASS;

#[test]
fn bpftrace_reads_the_probes_of_a_worker() {
    let guest = Guest::new().memory(1536).program(Path::new(RINGPASS)).program(Path::new("/usr/bin/bpftrace")).boot();
    guest.run("mount -t debugfs none /sys/kernel/debug; mount -t tracefs none /sys/kernel/tracing || true");
    let listed = guest.run("bpftrace -l 'usdt:/host/ringpass:*'");
    assert!(["round", "dropped"].iter().all(|name| listed.contains(&format!("ringpass:{name}"))), "{listed}");
    // Two bursts of up to four a round: a forwarder between two cards takes one from each.
    let load = guest.spawn("ringpass demo --batch 4 --time 600 --hugepages off --json");
    let said = guest.run(
        "bpftrace -e 'usdt:/host/ringpass:ringpass:round { @rounds = count(); @packets = max(arg0); @cycles = min(arg1); }
            interval:s:3 { exit(); }'",
    );
    guest.run("kill -INT $(pidof ld-linux-x86-64.so.2 ringpass) || true");
    guest.wait(&load, Duration::from_secs(60));
    let number = |name: &str| {
        let line = said.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {said}"));
        line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok()).unwrap_or_else(|| panic!("{line}"))
    };
    assert!(number("@rounds") > 0);
    assert!((1..=8).contains(&number("@packets")), "{said}");
    assert!(number("@cycles") > 0, "{said}");
}
