//! Tests of the harness itself: guests boot, run commands, report failures and end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use ringpass_lab::{Guest, Iommu, Machine, Output, wait_until};

/// Returns the message of a panic, and fails if there is none.
fn panic_of(what: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(what)).expect_err("a panic");
    panic.downcast::<String>().map_or_else(|_| "no text".to_owned(), |text| *text)
}

#[test]
fn a_guest_runs_commands() {
    let guest = Guest::new().cpus(2).file("greeting", b"hello\n").program(Path::new("/usr/bin/env")).boot();
    assert_eq!(guest.run("nproc; cat /host/greeting"), "2\nhello\n");
    let wrong = Output { status: 3, text: "out\nerror\n".to_owned() };
    assert_eq!(guest.output("echo out; echo error >&2; exit 3", Duration::from_secs(60)), wrong);

    // Scripts and answers of any length arrive complete; a script may have several lines.
    let long = "0123456789abcdef".repeat(10_000);
    assert_eq!(guest.run(&format!("cat <<end\n{long}\nend\n")).trim_end(), long);

    // A program of the host runs with the host's libraries.
    assert!(guest.run("env -i A=B env").contains("A=B\n"));

    // Jobs run in the background.
    let job = guest.spawn("echo begun; until [ -e /run/go ]; do sleep 0.05; done; echo 'it''s over'; exit 4");
    wait_until("the job's first line", || guest.printed(&job) == "begun\n");
    guest.run("touch /run/go");
    assert_eq!(guest.wait(&job, Duration::from_secs(60)), Output { status: 4, text: "begun\nits over\n".to_owned() });

    // The kernel's messages are on the console.
    guest.run("echo '<4>a word from the kernel' >/dev/kmsg");
    wait_until("the console", || guest.console().contains("a word from the kernel"));

    // A failing command, a command that exceeds its limit and a guest that dies each end the test.
    assert!(panic_of(|| drop(guest.run("echo it broke; false"))).contains("it broke"));
    assert!(panic_of(|| drop(guest.run_within(Duration::from_secs(1), "sleep 3"))).contains("no answer"));
    assert_eq!(guest.run("echo the next"), "the next\n");
    assert!(panic_of(|| drop(guest.run("poweroff -f"))).contains("ended"));
}

#[test]
fn a_dropped_guest_leaves_nothing() {
    let guest = Guest::new().machine(Machine::Pc).boot();
    let process = format!("/proc/{}", guest.id());
    assert!(std::fs::read_to_string(format!("{process}/cmdline")).unwrap().contains("qemu-system-x86_64"));
    let start = Instant::now();
    drop(guest);
    assert!(!Path::new(&process).exists());
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_failing_test_prints_the_console() {
    // Runs this test binary again with the test that fails on purpose.
    let test = std::env::current_exe().unwrap();
    let output = std::process::Command::new(test)
        .args(["--ignored", "--exact", "harness::fails_on_purpose", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("in the guest: echo it broke; false"), "{text}");
    assert!(text.contains("the guest's console, last lines:"), "{text}");
    assert!(text.contains("last words of the kernel"), "{text}");
}

#[test]
#[ignore = "fails on purpose; run by a_failing_test_prints_the_console"]
fn fails_on_purpose() {
    let guest = Guest::new().boot();
    guest.run("echo '<4>last words of the kernel' >/dev/kmsg");
    guest.run("echo it broke; false");
}

#[test]
fn devices_are_there_and_vfio_takes_one_as_an_ordinary_user() {
    let guest = Guest::new().iommu(Iommu::Passthrough).device("edu,addr=8").device("igb,addr=9").boot();
    let pci = guest.run("cd /sys/bus/pci/devices; for d in *; do echo $d $(cat $d/vendor $d/device); done");
    assert!(pci.contains("0000:00:08.0 0x1234 0x11e8"), "{pci}");
    assert!(pci.contains("0000:00:09.0 0x8086 0x10c9"), "{pci}");

    // Linux's own driver binds to the igb.
    guest.run("modprobe igb; until ip link set eth0 up; do sleep 0.1; done");
    assert!(guest.run("ethtool -i eth0").contains("driver: igb"));

    // VFIO binds to the edu device, whose group the user then opens.
    let group = guest.run(
        "modprobe -a vfio-pci vfio_iommu_type1
         cd /sys/bus/pci/devices/0000:00:08.0
         echo vfio-pci >driver_override; echo 0000:00:08.0 >/sys/bus/pci/drivers_probe
         basename $(readlink iommu_group)",
    );
    let group = group.trim();
    let open = format!("su user -c 'exec 4<>/dev/vfio/vfio 5<>/dev/vfio/{group}; id -u'");
    assert_ne!(guest.output(&open, Duration::from_secs(60)).status, 0, "before the group is the user's");
    guest.run(&format!("chown user /dev/vfio/{group}; chmod 666 /dev/vfio/vfio"));
    assert_eq!(guest.run(&open), "1000\n");
}
